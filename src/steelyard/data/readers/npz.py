"""Arrays of numpy on disk; features and labels of an `.npz` file: `X` and `Y`, or `X_train`, `Y_train` and the like."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from typing import Any, BinaryIO, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array, issparse

from steelyard.data.dataset import ArrayDataset
from steelyard.data.files import DataError, PathLike, check_choice, faults_of, require
from steelyard.labels import UNKNOWN, Labels

_SPARSE = ("data", "indices", "indptr", "shape")


def npz(path: PathLike, split: str | None = None, absent: Literal[0, -1] = 0) -> ArrayDataset:
    """Return features X (N, …) and labels Y (N, L) of an `.npz` file, with its `ids`, `classes` and `groups`.

    NaN in Y is unknown. Pickled arrays are never loaded. A sparse matrix in CSR form is stored as its parts,
    `X_train_data`, `X_train_indices`, `X_train_indptr` and `X_train_shape`; cells of Y that it does not store are
    absent.

    Args:
        path: the file.
        split: ending of the array names, such as "train" for `X_train`, `Y_train` and `ids_train`; None for `X`, `Y`
            and `ids`.
        absent: the value that means absent. With 0, −1 is unknown (the convention of this package); with −1, 0 is
            unknown (as in Pascal VOC and many ±1 files).
    Examples:
        >>> np.savez("data.npz", X=np.eye(2), Y=[[1, 0], [-1, 1]], classes=["cat", "dog"])
        >>> data = sy.data.npz("data.npz")
        >>> data.labels.names, data.labels.unknown_rate
        (('cat', 'dog'), 0.25)
    """
    check_choice(absent, (0, -1), "absent")
    arrays = read_arrays(path)
    ending = "" if split is None else f"_{split}"
    if missing := [name for name in (f"X{ending}", f"Y{ending}") if name not in arrays]:
        splits = sorted(name[2:] for name in arrays if name.startswith("Y_"))
        there = f"it has {', '.join(arrays) or 'no arrays'}"
        hint = f"give split={' or '.join(map(repr, splits))}" if splits else there
        raise DataError(f"{path} has no array {missing[0]}: {hint}")
    inputs, labels = arrays[f"X{ending}"], read_labels(arrays, ending, absent, path)
    with faults_of(f"{path}: X{ending}"):
        data = ArrayDataset(inputs, labels)
    if inputs.ndim == 2 and not issparse(inputs):
        with np.errstate(over="ignore"):
            data.inputs = inputs.astype(np.float32, copy=False)
        if inputs.itemsize > 4 and len(odd := np.argwhere(np.isinf(data.inputs) & np.isfinite(inputs))):
            cell = f"{inputs[tuple(odd[0])]:g} in row {odd[0][0]}"
            raise DataError(f"{path}: X{ending} holds {cell}, too large for float32: scale it")
    return data


def read_labels(arrays: Mapping[str, NDArray[Any]], ending: str, absent: int, path: PathLike) -> Labels:
    """Return the labels `Y` of an `.npz` file with its names, ids and groups, see `npz`."""
    names, ids = names_and_ids(arrays, ending, path)
    labels = to_labels(arrays[f"Y{ending}"], absent, names, ids, f"{path}: Y{ending}")
    with faults_of(f"{path}: groups{ending}"):
        return labels.grouped(arrays.get(f"groups{ending}"))


def read_arrays(path: PathLike) -> Mapping[str, NDArray[Any]]:
    """Return the arrays of an `.npz` file; one that would have to be unpickled is refused."""
    try:
        with require(path).open("rb") as file:
            content = np.load(_begun(file), allow_pickle=False)
            if isinstance(content, np.ndarray):
                raise DataError(f"{path} is a single array: save features and labels in one .npz file, as X and Y")
            arrays = {name: content[name] for name in content.files}
        if strange := [name for name, array in arrays.items() if not isinstance(array, np.ndarray)]:
            raise DataError(f"{path}: {strange[0]!r:.60} in it is not an array: save or download it again")
        return _with_sparse(arrays, path)
    except DataError:
        raise
    except Exception as error:  # zipfile and numpy meet damaged files with nearly every kind of exception
        raise DataError(
            f"{path} is not an .npz file of plain arrays ({_why(error)}): save or download it again"
        ) from None


def _with_sparse(arrays: dict[str, Any], path: PathLike) -> dict[str, Any]:
    """Return arrays with those joined that are the parts of a sparse matrix: X_data, X_indices, X_indptr, X_shape."""
    whole = dict(arrays)
    for name in [name.removesuffix("_indptr") for name in arrays if name.endswith("_indptr")]:
        keys = [f"{name}_{part}" for part in _SPARSE]
        if missing := [key for key in keys if key not in arrays]:
            raise DataError(f"{path} has no array {missing[0]}: a sparse matrix is saved as {', '.join(keys)}")
        data, indices, indptr, shape = (whole.pop(key) for key in keys)
        try:
            if shape.shape != (2,) or {shape.dtype.kind, indices.dtype.kind, indptr.dtype.kind} - {"i", "u"}:
                raise ValueError("its shape and places are not whole numbers")
            matrix = csr_array((data, indices, indptr), tuple(map(int, shape)))
            matrix.check_format(full_check=True)
        except (ValueError, TypeError, OverflowError) as error:
            why = " ".join(str(error).split())[:120]
            raise DataError(f"{path}: {name} is not a sparse matrix in CSR form ({why}): save it again") from None
        whole[name] = matrix
    return whole


def array_names(path: PathLike) -> set[str]:
    """Return the names of the arrays in an `.npz` file; none if it is corrupt, which `read_arrays` reports."""
    try:
        with zipfile.ZipFile(path) as archive:
            names = {name.removesuffix(".npy") for name in archive.namelist()}
    except Exception:  # as above
        return set()
    sparse = {name.removesuffix("_indptr") for name in names if name.endswith("_indptr")}
    return (names | sparse) - {f"{name}_{part}" for name in sparse for part in _SPARSE}


def read_array(path: PathLike) -> NDArray[Any]:
    """Return the array of an `.npy` file, mapped, not read."""
    try:
        with require(path).open("rb") as file:
            _begun(file)
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except DataError:
        raise
    except Exception as error:  # as above
        why = _why(error)
        raise DataError(f"{path} is not an .npy file of a plain array ({why}): save it again by numpy.save") from None
    if not isinstance(array, np.ndarray):
        array.close()
        raise DataError(f"{path} holds several arrays, as .npz files do: rename it, or save one by numpy.save")
    return array


def _begun(file: BinaryIO) -> BinaryIO:
    """Return a file that begins like numpy's files; `numpy.load` would take any other for a pickle."""
    if not file.read(8).startswith((b"\x93NUMPY", b"PK\x03\x04", b"PK\x05\x06")):
        raise ValueError("it does not begin as one does")
    file.seek(0)
    return file


def _why(error: Exception) -> str:
    """Return what numpy or zipfile found, less its advice to unpickle."""
    message = " ".join(str(error).split()) or type(error).__name__
    unsafe = "allow_pickle" in message or "Python objects" in message
    return "it holds Python objects, never loaded" if unsafe else message[:120]


def names_and_ids(
    arrays: Mapping[str, NDArray[Any]], ending: str, path: PathLike
) -> tuple[list[str] | None, list[str] | None]:
    """Return the `classes` and the `ids` of an `.npz` file, each None where it has none."""
    names, ids = (_texts(arrays.get(name), f"{path}: {name}") for name in ("classes", f"ids{ending}"))
    return names, ids


def _texts(array: NDArray[Any] | None, where: str) -> list[str] | None:
    if array is not None and array.ndim != 1:
        raise DataError(f"{where} has shape {array.shape}: save a list of names")
    return None if array is None else [str(name) for name in array]


def to_labels(values: NDArray[Any], absent: int, names: list[str] | None, ids: list[str] | None, where: str) -> Labels:
    """Return `values` (N, L) as `Labels`; NaN is unknown, and so is 0 in a file where −1 is absent."""
    dense = not issparse(values)
    if dense and values.dtype.kind == "f" and (unsaid := np.isnan(values)).any():
        values = np.where(unsaid, 0 if absent == -1 else UNKNOWN, values)
    if dense and absent == -1 and values.dtype.kind in "biuf":
        values = np.select([values == -1, values == 0], [np.int8(0), np.int8(UNKNOWN)], values)
    with faults_of(where):
        return Labels(values, names, ids) if dense else Labels.from_scipy(values, names=names, ids=ids)
