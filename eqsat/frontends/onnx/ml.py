"""ONNX operators of classical machine learning: n-grams, ensembles of trees, tables of labels."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from eqsat.frontends.onnx.table import Array, Node, Unsupported, op


@op("TfIdfVectorizer")
def tf_idf_vectorizer(node: Node, x: Array) -> Array:
    """How often each n-gram of the pool occurs in a row, with up to `max_skip_count` elements left out between its own."""
    if node.get("pool_strings"):
        raise node.error("n-grams of integers required, got strings", Unsupported)
    pool, starts = np.asarray(node.get("pool_int64s")), [*node.get("ngram_counts"), len(node.get("pool_int64s"))]
    places = np.asarray(node.get("ngram_indexes"))
    counts = jnp.zeros((*x.shape[:-1], int(places.max()) + 1), np.float32)
    first = 0
    for length, (start, stop) in enumerate(zip(starts, starts[1:], strict=False), 1):
        grams = pool[start:stop].reshape(-1, length).astype(x.dtype)
        own = places[first : first + len(grams)]
        first += len(grams)
        if not node.get("min_gram_length") <= length <= node.get("max_gram_length"):
            continue
        for step in range(1, node.get("max_skip_count") + 2 if length > 1 else 2):
            windows = x.shape[-1] - (length - 1) * step
            if windows > 0:
                parts = [x[..., k * step : k * step + windows, None] == grams[:, k] for k in range(length)]
                found = jnp.stack(parts).all(0).sum(-2, dtype=np.int32)
                counts = counts.at[..., own].add(found.astype(np.float32))
    weights = np.ones(counts.shape[-1], np.float32)
    if node.get("weights"):
        weights[places] = np.asarray(node.get("weights"), np.float32)
    return {"TF": counts, "IDF": jnp.where(counts > 0, weights, np.float32(0)), "TFIDF": counts * weights}[
        _text(node.get("mode"))
    ]


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


@op("LabelEncoder", domain="ai.onnx.ml", folds=True)
def label_encoder(node: Node, x: Array) -> Array:
    """The value that stands beside a key; of strings only while importing."""
    keys, values = (_listed(node, name) for name in ("keys", "values"))
    default = node.get("default_tensor")
    if default is None:
        kind = {"O": "string", "f": "float"}.get(values.dtype.kind, "int64")
        default = node.get(f"default_{kind}", {"string": "_Unused", "float": -0.0}.get(kind, -1))
    default = np.asarray(default, values.dtype).reshape(())
    if keys.dtype.kind == "O":
        if not isinstance(x, np.ndarray):
            raise node.importer.unknown(node, [0], [x])
        known = {_text(k): v for k, v in zip(keys, values, strict=True)}
        return np.asarray([known.get(_text(k), default[()]) for k in x.reshape(-1)], values.dtype).reshape(x.shape)
    keys = keys.astype(x.dtype)
    same = (x[..., None] == keys) | ((x != x)[..., None] & (keys != keys))
    return node.xp.where(same.any(-1), node.xp.asarray(values)[node.xp.argmax(same, -1)], node.cast(default, values.dtype))


def _listed(node: Node, name: str) -> np.ndarray:
    kinds = {f"{name}_tensor": None, f"{name}_strings": object, f"{name}_int64s": np.int64, f"{name}_floats": np.float32}
    given = [(value, kind) for key, kind in kinds.items() if (value := node.get(key)) is not None]
    if len(given) != 1:
        raise node.error(f"one attribute of {', '.join(kinds)} required, got {len(given)}")
    return np.asarray(given[0][0], given[0][1])


@op("TreeEnsemble", domain="ai.onnx.ml")
def tree_ensemble(node: Node, x: Array) -> Array:
    """x: [row, feature]. All trees take a step down at a time; a leaf stays where it is."""
    given = {name: np.asarray(node.get(f"nodes_{name}")) for name in ("modes", "featureids", "splits")}
    count, leaves = len(given["featureids"]), np.asarray(node.get("leaf_weights"))
    own = np.arange(count, count + len(leaves))
    down = np.stack([np.concatenate([_children(node, side, count), own]) for side in ("false", "true")]).astype(np.int32)
    padded = {name: np.pad(value, (0, len(leaves))) for name, value in given.items()}
    sets = np.pad(_members(node, given["modes"]), ((0, len(leaves)), (0, 0)), constant_values=np.nan).astype(x.dtype)
    missing = np.pad(np.asarray(node.get("nodes_missing_value_tracks_true") or [0] * count, bool), (0, len(leaves)))
    tables = [padded["featureids"].astype(np.int32), padded["modes"], padded["splits"].astype(x.dtype), sets, missing, *down]
    features, modes, splits, members, tracks, left, right = map(jnp.asarray, tables)
    at = jnp.broadcast_to(np.asarray(node.get("tree_roots"), np.int32), (x.shape[0], len(node.get("tree_roots"))))
    for _ in range(_depth(node, down, count)):
        value, mode, split = jnp.take_along_axis(x, features[at], axis=1), modes[at], splits[at]
        tests = [value <= split, value < split, value >= split, value > split, value == split, value != split]
        tests.append((value[..., None] == members[at]).any(-1))
        true = jnp.select([mode == n for n in range(len(tests))], tests) | (tracks[at] & jnp.isnan(value))
        at = jnp.where(true, right[at], left[at])
    weights = jnp.asarray(leaves.astype(x.dtype))[at - count]
    targets = jnp.asarray(np.asarray(node.get("leaf_targetids"), np.int32))[at - count]
    return _transformed(node, _gathered(node, weights, targets[..., None] == np.arange(node.get("n_targets"))))


def _children(node: Node, side: str, count: int) -> np.ndarray:
    """The positions of branches, leaves behind the nodes."""
    places, leaf = (np.asarray(node.get(f"nodes_{side}{name}")) for name in ("nodeids", "leafs"))
    limit = np.where(leaf, len(node.get("leaf_targetids")), count)
    if (places < 0).any() or (places >= limit).any():
        raise node.error(f"nodes_{side}nodeids within the nodes and leaves required, got {places.tolist()}")
    return places + count * leaf.astype(bool)


def _depth(node: Node, down: np.ndarray, count: int) -> int:
    """Steps from a root to the leaves."""
    at = np.unique(np.asarray(node.get("tree_roots")))
    for steps in range(count + 1):
        if (at >= count).all():
            return steps
        at = np.unique(down[:, at])
    raise node.error("trees required, got nodes that lead back to themselves")


def _members(node: Node, modes: np.ndarray) -> np.ndarray:
    """For each node the values that its test lets pass, filled up with NaN; in the attribute a NaN ends each list."""
    values, lists = node.get("membership_values"), list[list[float]]()
    for value in () if values is None else np.asarray(values):
        lists = lists or [[]]
        lists = [*lists, []] if np.isnan(value) else [*lists[:-1], [*lists[-1], value]]
    found = np.full((len(modes), max(map(len, lists), default=0)), np.nan)
    for row, members in zip(np.nonzero(modes == 6)[0], lists, strict=False):
        found[row, : len(members)] = members
    return found


def _gathered(node: Node, weights: Array, mine: Array) -> Array:
    """[row, target] from the trees' weights, each for one target."""
    kind = node.get("aggregate_function", 1)
    weights, none = weights[..., None], jnp.zeros((), weights.dtype)
    if kind in (0, 1):
        parts = weights / np.asarray(weights.shape[1], weights.dtype) if kind == 0 else weights
        return jnp.where(mine, parts, none).sum(1)
    best = jnp.where(mine, weights, np.inf).min(1) if kind == 2 else jnp.where(mine, weights, -np.inf).max(1)
    return jnp.where(mine.any(1), best, none).astype(weights.dtype)  # ONNX Runtime gives zero where no tree has a say


def _transformed(node: Node, scores: Array) -> Array:
    kind = node.get("post_transform", 0)
    if kind not in (0, 1, 2):
        raise node.error(f"post_transform NONE, SOFTMAX or LOGISTIC required, got {kind}", Unsupported)
    return (scores, jax.nn.softmax(scores), jax.nn.sigmoid(scores))[kind]
