"""Sidecar: `equipoise.safetensors`, the balancers' state beside a model, an adapter or a
checkpoint.

A model's own file holds its biases, and no adapter's does. Neither holds what a rule remembers
(momentum, histograms' widths, the number of updates), nor the shift of a family without a bias.
This file does, in float32 and int64, never pickled.
"""

from __future__ import annotations

import contextlib
import copy
import warnings
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from equipoise.attach.find.routers import plain_name
from equipoise.attach.patching import PatchedMethod
from equipoise.attach.state.fingerprint import weight_fingerprint
from equipoise.balancing.older_states import may_be_missing
from equipoise.storage.atomic import replace_file
from equipoise.storage.optional import import_optional

if TYPE_CHECKING:
    from equipoise.attach.balance import Balancing

SIDECAR_NAME = "equipoise.safetensors"
SIDECAR_FORMAT = "1"


def save_sidecar(balancing: Balancing, folder: Path) -> Path:
    """Write the state into `folder`, whole or not at all."""
    tensors = {
        key: value.detach().cpu().clone().contiguous()
        for key, value in balancer_state(balancing).items()
    }
    metadata = {
        "equipoise": SIDECAR_FORMAT,
        "steps": str(balancing.steps),
        "dropped": str(balancing.dropped),
    }
    metadata["weights"] = weight_fingerprint(balancing.routers)
    folder.mkdir(parents=True, exist_ok=True)
    path, safetensors = folder / SIDECAR_NAME, import_optional("safetensors.torch", extra="hf")
    with replace_file(path) as unfinished:
        safetensors.save_file(tensors, unfinished, metadata=metadata)
    return path


def save_beside(balancing: Balancing, modules: Iterable[nn.Module]) -> list[PatchedMethod]:
    """Patch the `save_pretrained` of these, where it would lose biases or shifts."""
    shifted = any(router.found.bias is None for router in balancing.routers)
    patched = []
    for module in modules:
        # not where a wrapper passes on the method of what it wraps
        own: Any = module if hasattr(type(module), "save_pretrained") else None
        if own is not None and (shifted or hasattr(own, "peft_config")):
            saver = SaveBeside(balancing, own.save_pretrained)
            patched.append(PatchedMethod(own, "save_pretrained", saver))
    return patched


class SaveBeside:
    """The `save_pretrained` of an adapter, or of a model without a bias, which writes the sidecar
    too: else biases and shifts would be lost without notice.

    An object and not a function, so that a copy of the model saves the copy, without our state.
    """

    def __init__(self, balancing: Balancing | None, own: Callable[..., Any]) -> None:
        self.balancing = balancing
        self.own = own

    def __call__(self, save_directory: str | Path, *args: Any, **kwargs: Any) -> Any:
        if self.balancing is None or not kwargs.get("is_main_process", True):
            return self.own(save_directory, *args, **kwargs)
        with _written_before_upload(self.balancing, self.own):
            answer = self.own(save_directory, *args, **kwargs)
        self.balancing.save(save_directory)
        _warn_of_shifts(self.balancing)
        return answer

    def __getstate__(self) -> dict[str, object]:
        """A pickled model saves itself, without our state."""
        return {"balancing": None, "own": self.own}

    def __deepcopy__(self, memo: dict[int, Any]) -> SaveBeside:
        return SaveBeside(None, copy.deepcopy(self.own, memo))


@contextlib.contextmanager
def _written_before_upload(balancing: Balancing, own: Callable[..., Any]) -> Iterator[None]:
    """save_pretrained(..., push_to_hub=True) uploads before it returns: the sidecar must be in the
    folder by then. transformers and PEFT upload by this method; another library has none, and
    then the sidecar is only written.
    """
    owner = getattr(own, "__self__", None)
    upload = getattr(owner, "_upload_modified_files", None)
    if owner is None or upload is None:
        yield
        return

    def upload_with_sidecar(working_dir: str | Path, *args: Any, **kwargs: Any) -> Any:
        balancing.save(working_dir)
        return upload(working_dir, *args, **kwargs)

    patched = PatchedMethod(owner, "_upload_modified_files", upload_with_sidecar)
    try:
        yield
    finally:
        patched.restore()


def _warn_of_shifts(balancing: Balancing) -> None:
    """Say that a model's own file lacks the shifts it was trained with."""
    shifts = [router.applied_shift for router in balancing.routers if router.found.bias is None]
    moved = sum(bool(shift.any()) for shift in shifts)
    if moved:
        warnings.warn(
            f"{moved} routers of this family have a shift and no bias to keep it in: it is saved "
            f"beside the model, in {SIDECAR_NAME}, and equipoise.balance(model) reads it from "
            "there, but nothing else does: without it most tokens may take other experts. For a "
            "model that needs no shift call balancing.anneal(steps) that many steps before the "
            "training ends",
            stacklevel=3,
        )


def shifts_beside(model: nn.Module) -> dict[str, Tensor]:
    """The shifts in the folder that a model was loaded from, by router; none where no file of ours
    is there.
    """
    origins = (getattr(module, "name_or_path", None) for module in model.modules())
    folder = next((origin for origin in origins if isinstance(origin, str)), "")
    path = Path(folder) / SIDECAR_NAME
    if not folder or not path.is_file():
        return {}
    _, tensors = _read_sidecar(path)
    return {
        plain_name(key).removesuffix("/shift"): value
        for key, value in tensors.items()
        if key.endswith("/shift")
    }


def stored_shifts(folder: Path) -> dict[str, Tensor]:
    """(E,) by router: what the sidecar in `folder` adds to scores, mean included; none without a
    sidecar.
    """
    path = folder / SIDECAR_NAME
    if not path.is_file():
        return {}
    _, tensors = _read_sidecar(path)
    found = {}
    for key, shift in tensors.items():
        if key.endswith("/shift"):
            name = key.removesuffix("/shift")
            mean = tensors.get(f"{name}/mean", shift.double().mean())
            found[plain_name(name)] = shift + (mean - shift.double().mean()).float()
    return found


def load_sidecar(balancing: Balancing, folder: Path) -> str:
    """Take over the state in `folder`, and return the fingerprint of the weights it was saved
    beside.
    """
    path = folder / SIDECAR_NAME if folder.is_dir() else folder
    if not path.is_file():
        raise FileNotFoundError(
            f"{path} is not there: balancing.save(folder) writes it, and Trainer's checkpoints "
            "hold it"
        )
    metadata, tensors = _read_sidecar(path)
    restore_state(balancing, tensors, source=str(path))
    balancing.steps, balancing.dropped = int(metadata["steps"]), int(metadata["dropped"])
    return metadata.get("weights", "{}")


def _read_sidecar(path: Path) -> tuple[dict[str, str], dict[str, Tensor]]:
    """The metadata and tensors of a file of ours."""
    safetensors = import_optional("safetensors", extra="hf")
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 - not a mapping
    except safetensors.SafetensorError as error:
        raise ValueError(f"{path} is damaged ({error}): load another checkpoint's") from error
    if metadata.get("equipoise") != SIDECAR_FORMAT:
        raise ValueError(f"{path} was not written by equipoise, or by another version of it")
    return metadata, tensors


def balancer_state(balancing: Balancing) -> dict[str, Tensor]:
    """All balancers' state, by router and name."""
    tensors = {}
    for router in balancing.routers:
        router.shift.refresh()
        for name, value in router.balancer.state_dict().items():
            tensors[f"{router.name}/{name}"] = value
        tensors[f"{router.name}/mean"] = router.shift.mean
        tensors[f"{router.name}/anneal_left"] = torch.tensor(router.anneal_left)
    return tensors


def restore_state(balancing: Balancing, tensors: dict[str, Tensor], source: str) -> None:
    """Set all balancers' state: whole or not at all."""
    by_router: dict[str, dict[str, Tensor]] = {}
    for key, value in tensors.items():
        router_name, _, name = key.rpartition("/")
        # files of before may have names with a wrapper's prefix
        by_router.setdefault(plain_name(router_name + ".")[:-1], {})[name] = value
    names = {router.name for router in balancing.routers}
    if names != set(by_router):
        raise ValueError(
            f"{source} is of another model: it lacks {sorted(names - set(by_router))} and has "
            f"{sorted(set(by_router) - names)}"
        )
    for router in balancing.routers:
        _check_same_rule(router.name, router.balancer.state_dict(), by_router[router.name], source)
    for router in balancing.routers:
        values = by_router[router.name]
        router.shift.mean, router.anneal_left = (
            values.pop("mean").to(router.shift.mean.device),
            int(values.pop("anneal_left")),
        )
        router.balancer.load_state_dict(values)
        router.count.clear()
        router.shift.apply()
    balancing.loaded = True


def _check_same_rule(
    router: str, mine: dict[str, Tensor], theirs: dict[str, Tensor], source: str
) -> None:
    """A state fits if it has the same tensors; older files may lack some."""
    mine = {
        name: value for name, value in mine.items() if name in theirs or not may_be_missing(name)
    }
    shapes = {name: tuple(value.shape) for name, value in mine.items()} | {
        "mean": (),
        "anneal_left": (),
    }
    if shapes != {name: tuple(value.shape) for name, value in theirs.items()}:
        raise ValueError(
            f"{source} holds the state of another balancer than the one of {router}: make one of "
            "the same name"
        )
