"""Loads over a training as GIF and PNG: right in every pixel, the same every time."""

import base64
import zlib

import numpy as np
import pytest

from equipoise.cli import main
from equipoise.drawing.canvas import Canvas, glyph_pixels, text_width
from equipoise.drawing.palette import MUTE, OVER, load_colors, load_palette
from equipoise.report.animation.files import changed_box, encode_gif, encode_png, lzw_encode
from equipoise.report.animation.loads import (
    MARGIN,
    animate_loads,
    draw_frames,
    read_panels,
    worst_layer,
)

DECODED = """async (url) => {
  const bytes = Uint8Array.from(atob(url), (letter) => letter.charCodeAt(0));
  const decoder = new ImageDecoder({ data: bytes, type: "image/gif" });
  await decoder.tracks.ready;
  const frames = [];
  for (let n = 0; n < decoder.tracks.selectedTrack.frameCount; n++) {
    const { image } = await decoder.decode({ frameIndex: n });
    const canvas = new OffscreenCanvas(image.displayWidth, image.displayHeight);
    const context = canvas.getContext("2d");
    context.drawImage(image, 0, 0);
    frames.push([...context.getImageData(0, 0, canvas.width, canvas.height).data]);
  }
  return frames;
}"""


def lzw_decode(data):
    """The slow twin: by the book, a string for each code."""
    table, bits, held, count, out, last = None, 9, 0, 0, bytearray(), None
    for byte in data:
        held, count = held | byte << count, count + 8
        while count >= bits:
            code, held, count = held & (1 << bits) - 1, held >> bits, count - bits
            if code == 256:
                table, bits, last = [bytes([n]) for n in range(256)] + [b"", b""], 9, None
                continue
            if code == 257:
                return bytes(out)
            text = table[code] if code < len(table) else last + last[:1]
            out += text
            if last is not None and len(table) < 4096:
                table.append(last + text[:1])
                if len(table) == 1 << bits and bits < 12:
                    bits += 1
            last = text
    raise AssertionError("no end")


@pytest.mark.parametrize("size", [1, 2, 255, 256, 257, 700, 5000, 60_000])
@pytest.mark.parametrize("colors", [1, 2, 7, 250])
def test_what_is_packed_is_unpacked(size, colors):
    pixels = np.random.default_rng(size).integers(0, colors, size).astype(np.uint8)
    assert lzw_decode(lzw_encode(pixels)) == pixels.tobytes()


def test_every_end_of_a_code_is_met():
    # the last code may fall on every place in the table, also where codes get longer
    pixels = np.random.default_rng(0).integers(0, 200, 1000).astype(np.uint8)
    for size in range(200, 600):
        assert lzw_decode(lzw_encode(pixels[:size])) == pixels[:size].tobytes()


def test_a_browser_sees_the_frames(opened, results):
    page, _ = opened()
    frames = [np.random.default_rng(n).integers(0, 200, (20, 30)).astype(np.uint8) for n in (0, 1)]
    # the third differs from the second in one corner
    frames.append(frames[1].copy())
    frames[2][15:, 25:] = 3
    # and the fourth in nothing
    frames.append(frames[2].copy())
    palette = load_palette()
    data = base64.b64encode(encode_gif(frames, palette, [5, 5, 5, 5])).decode()
    seen = page.evaluate(DECODED, data) if page.evaluate("'ImageDecoder' in window") else None
    if seen is None:
        pytest.skip("this browser decodes no frames for scripts")
    for frame, pixels in zip(frames, seen, strict=True):
        assert (np.array(pixels).reshape(20, 30, 4)[..., :3] == palette[frame]).all()


def test_only_what_changed_is_written_again():
    before = np.zeros((9, 9), np.uint8)
    after = before.copy()
    after[2:4, 5:7] = 1
    assert changed_box(None, after) == (0, 0, 9, 9)
    assert changed_box(before, after) == (2, 5, 4, 7)
    assert changed_box(after, after) == (0, 0, 1, 1)


def test_a_png_holds_its_pixels():
    pixels = np.arange(12, dtype=np.uint8).reshape(3, 4)
    data = encode_png(pixels, load_palette())
    start = data.index(b"IDAT") + 4
    rows = zlib.decompressobj().decompress(data[start:])
    assert rows == b"".join(b"\x00" + row.tobytes() for row in pixels)


def test_colours_follow_the_scale():
    palette = load_palette().astype(int)
    low, even, high, over = palette[load_colors(np.array([0.0, 1.0, 2.99, 3.01]))]
    assert low[2] > low[0] + 100
    assert even.min() > 240
    assert high[0] > high[2] + 100
    assert (over == palette[OVER]).all()


def test_letters_are_drawn_and_unknown_ones_are_boxes():
    letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/|-(),.:%_√=+"
    shapes = {glyph_pixels(letter).tobytes() for letter in letters}
    assert len(shapes) == len(letters)
    assert glyph_pixels("語")[0].all()
    canvas = Canvas(20, 20)
    canvas.write_text("wide text that does not fit", 2, 15)


def test_a_training_moves_column_by_column(results, tmp_path, capsys):
    run = results / "runs" / "deepseek-0"
    assert main(["report", str(run), "--animate", str(tmp_path / "loads.gif")]) == 0
    assert capsys.readouterr().out.strip().endswith("loads.gif")
    data = (tmp_path / "loads.gif").read_bytes()
    [panel] = read_panels(run)
    steps = panel.layers[worst_layer([panel])]["steps"]
    assert panel.scheme == "deepseek"
    assert data.startswith(b"GIF89a")
    assert data.count(b"\x21\xf9\x04\x05") == len(steps)
    assert data == animate_loads(run, tmp_path / "again.gif").read_bytes()


def test_a_comparison_has_a_panel_for_each_scheme(results, tmp_path):
    assert [panel.scheme for panel in read_panels(results)] == [
        "none",
        "deepseek",
        "inverse_sqrt",
        "quantile",
    ]
    folder = animate_loads(results, tmp_path / "folder.png").read_bytes()
    assert folder == animate_loads(results / "rows.json", tmp_path / "kept.png").read_bytes()


def test_an_unfinished_training_is_drawn(results, tmp_path):
    trace = results / "runs" / "quantile-0" / "trace"
    run = tmp_path / "running"
    run.mkdir()
    (run / "trace").symlink_to(trace)
    assert animate_loads(run, tmp_path / "run.png").read_bytes().startswith(b"\x89PNG")
    assert (
        animate_loads(trace, tmp_path / "trace.png").read_bytes()
        == (tmp_path / "run.png").read_bytes()
    )


def test_columns_are_even_and_axes_are_named(results):
    [panel] = read_panels(results / "runs" / "deepseek-0")
    *_, last = draw_frames([panel])
    steps = panel.layers[worst_layer([panel])]["steps"]
    experts = len(panel.layers[0]["z"])
    left = MARGIN + text_width(f"{experts - 1} ", 2)
    width, tall = 720 // len(steps), 256 // experts
    cells = last[MARGIN + 24 :, left:][: tall * experts, : width * len(steps)]
    blocks = cells.reshape(experts, tall, len(steps), width)
    assert (blocks == blocks[:, :1, :, :1]).all()
    for words, x, y in [
        ("0", left - text_width("0 ", 2) + 2, MARGIN + 24 + (tall - 14) // 2),
        (f"step {steps[0]}", left, MARGIN + 28 + tall * experts),
    ]:
        wanted = Canvas(text_width(words), 14)
        wanted.write_text(words, 0, 0, MUTE)
        found = last[y : y + 14, x : x + text_width(words) - 2]
        assert (found == wanted.pixels[:, : found.shape[1]]).all(), words


def test_what_cannot_be_drawn_is_told(results, tmp_path, capsys):
    with pytest.raises(ValueError, match=r"\.gif \(moving\) or \.png \(still\), not 'loads.mp4'"):
        animate_loads(results, tmp_path / "loads.mp4")
    with pytest.raises(ValueError, match="holds no results"):
        animate_loads(tmp_path, tmp_path / "loads.gif")
    assert main(["report", str(results), "--animate", "a.gif", "--price", "2"]) != 0
    assert "use it without --price" in capsys.readouterr().err
