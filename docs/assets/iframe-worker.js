// The search of a site that is read from a disk. Browsers start no worker for file: pages, so there
// its script runs in a hidden frame. The theme's own remedy is a script from another host.
if (location.protocol === "file:")
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      this.frame.srcdoc = `<script>
        window.postMessage = data => frameElement.worker.answer(data);
        window.importScripts = () => { throw new Error("only English is searched"); };
      </script><script src="${new URL(url, document.baseURI)}"></script>`;
      this.frame.worker = this;
      this.ready = new Promise(done => this.frame.addEventListener("load", done));
      document.body.append(this.frame);
    }
    postMessage(data) {
      this.ready.then(() => {
        const window = this.frame.contentWindow;
        window.dispatchEvent(new window.MessageEvent("message", {data}));
      });
    }
    answer(data) {
      this.dispatchEvent(new MessageEvent("message", {data}));
    }
    terminate() {
      this.frame.remove();
    }
  };
