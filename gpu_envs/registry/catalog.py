"""Registered environments, by id and by spec path."""

import contextlib
import dataclasses
import functools
import importlib.machinery
import os
import sys
import threading
import warnings
import weakref
from collections.abc import Iterable
from pathlib import Path

import gymnasium

from gpu_envs.errors import SourceError, UnknownEnvironmentError, UntrustedError, did_you_mean
from gpu_envs.registry import importing, loading, sources, trusted
from gpu_envs.registry.sources import BY_HAND, Origin
from gpu_envs.specs.base import Spec
from gpu_envs.specs.single import EnvSpec
from gpu_envs.specs.team import TeamSpec

NAMESPACE = "gpu_envs"

SPECS: dict[str, Spec] = {}
ORIGINS: dict[str, Origin] = {}
CONFLICTS: dict[str, str] = {}
"""Error message of each id that two distributions claim."""
PICKLED_SPECS: weakref.WeakValueDictionary[str, Spec] = weakref.WeakValueDictionary()
"""Specs of environments that were pickled or copied in this process, by key, because their ids may be reused.

A spec stays while it is registered or an environment has it."""
_LOADED = threading.Event()
_LOADING = threading.RLock()
"""Held while distributions are imported. Reentrant, because a distribution may make an environment meanwhile."""


def register(spec: Spec, *, replace: bool = False) -> None:
    """Registers an environment by its id, and a single-agent one also with Gymnasium, as ``gpu_envs/<id>``.

    Environments with a team are registered with PettingZoo when ``gpu_envs.adapters.pettingzoo`` is imported. An
    environment that is named by its spec path, ``path/to/my_env.py:MY_ENV`` or ``package.module:MY_ENV``, need not be
    registered.

    Args:
        spec: Spec of the environment. Registering an equal spec again has no effect.
        replace: Replace another environment of the same id, as in a notebook where a cell was edited.

    Raises:
        ValueError: Another environment has this id, and ``replace`` is False.
    """
    if not isinstance(spec, Spec):
        raise TypeError(f"register takes an EnvSpec or a TeamSpec; got {spec!r}")
    add(spec, sources.current_origin(), replace=replace)


def add(spec: Spec, origin: Origin, *, replace: bool = False) -> None:
    """Registers a spec and its origin; a ValueError if another has its id, unless ``replace`` or it is a copy."""
    existing = SPECS.get(spec.id)
    origin = dataclasses.replace(origin, file=str(spec.source_file or ""))
    if existing is not None:
        existing_origin = origin_of(spec.id)
        same = existing is spec or existing == spec
        if not (same or replace or origin.replaces(existing_origin)):
            raise ValueError(
                f"the id {spec.id!r} is taken by another environment ({existing_origin.shown}; the new one: "
                f"{origin.shown}): choose another name or version, or replace it by gpu_envs.register(spec, "
                "replace=True), as in a notebook where a cell was edited"
            )
        if same and (existing_origin.reference or not origin.reference):
            return
        if existing_origin.file == origin.file and not origin.reference:
            origin = existing_origin  # the spec path that is known remains valid
    loading.on_failure(functools.partial(_restore, spec.id, existing, ORIGINS.get(spec.id)))
    _store(spec, origin)


def _restore(id: str, spec: Spec | None, origin: Origin | None) -> None:
    """Registers again what an id meant before a file failed that registered it; without ``spec``, removes the id."""
    if spec is not None:
        _store(spec, origin or BY_HAND)
        return
    removed = SPECS.pop(id, None)
    ORIGINS.pop(id, None)
    gymnasium.registry.pop(f"{NAMESPACE}/{id}", None)
    withdraw = getattr(sys.modules.get("gpu_envs.adapters.pettingzoo"), "withdraw", None)
    if withdraw is not None and isinstance(removed, TeamSpec):
        withdraw(id)


def _store(spec: Spec, origin: Origin) -> None:
    """Registers a spec, also with Gymnasium and, if its adapter is imported, PettingZoo; replaces its ID's spec."""
    SPECS[spec.id] = spec
    ORIGINS[spec.id] = origin
    if isinstance(spec, TeamSpec):
        publish = getattr(sys.modules.get("gpu_envs.adapters.pettingzoo"), "publish", None)
        if publish is not None:  # imported: it has published the other specs
            publish()
    gymnasium.registry.pop(f"{NAMESPACE}/{spec.id}", None)
    gymnasium.register(  # a team too: the entry points raise and name the alternative
        id=f"{NAMESPACE}/{spec.id}",
        entry_point="gpu_envs.adapters.gymnasium:SingleEnv",
        vector_entry_point="gpu_envs.making:make_vector_env",
        max_episode_steps=spec.step_limit(spec.check_params({}, 1)),
        reward_threshold=spec.reward_threshold,
        kwargs={"env_id": portable_name(spec.id)},
    )


def ids() -> list[str]:
    """Returns the ids of all environments; imports installed distributions that have some."""
    _load_distributions()
    return sorted(SPECS)


def registered() -> list[Spec]:
    """Returns the specs registered so far, without importing anything."""
    return [SPECS[name] for name in sorted(SPECS)]


def spec(id: str | Spec) -> Spec:
    """Returns the spec of an environment, by id or spec path; imports and registers it if necessary.

    Args:
        id: Id, with or without ``gpu_envs/``; or a spec path, ``path/to/my_env.py:MY_ENV`` or
            ``package.module:MY_ENV``, which is imported and registered. The name may be omitted if a file has one spec.
            Or the spec itself, which is registered.

    Raises:
        UnknownEnvironmentError: No environment has this id.
        FileNotFoundError: The file does not exist.
        SourceError: The file or module cannot be imported, or has no such spec.
        ValueError: Another environment has the id of this spec.

    Example:
        >>> gpu_envs.spec("CartPole-v1").params["length"].default
        0.5
    """
    if isinstance(id, Spec):
        if id.rules_text is not None:  # from a copy or pickle: another spec may have its id
            return id
        register(id)
        return SPECS[id.id]
    if not isinstance(id, str):
        raise TypeError(f"id must be a string or a spec; got {type(id).__name__}")
    name = id.removeprefix(f"{NAMESPACE}/")
    if name in SPECS and name not in CONFLICTS:
        return SPECS[name]
    reference = sources.parse_spec_path(id)
    if reference is not None:
        with loading.undo_on_failure():
            loaded, origin = sources.load(reference)
            add(loaded, origin)
        return SPECS[loaded.id]
    _load_distributions()
    if name in CONFLICTS:
        raise ValueError(CONFLICTS[name])
    if name in SPECS:
        return SPECS[name]
    similar = _similar_path(id)
    hint = f". Did you mean {similar!r}?" if similar else did_you_mean(name, SPECS)
    raise UnknownEnvironmentError(
        f"there is no environment {id!r}{hint} There are: {', '.join(sorted(SPECS))}; for your own environment, "
        "give the path of its spec, such as path/to/my_env.py:MY_ENV"
    )


def spec_of_run(name: str, source: str, *, trust: bool) -> Spec:
    """Returns the spec that a run directory or a settings file names; imports untrusted files only with ``trust``.

    Another person may have written the folder or file. Without ``trust``, it may name an installed package, a file that
    this process has imported by name, or a file that this user has trained with and not changed.

    Raises:
        UntrustedError: A file, or a module of the working folder, would have to be imported.
    """
    reference = sources.parse_spec_path(name)
    if trust or reference is None or _was_imported(reference) or not needs_trust(name):
        return spec(name)
    if not reference.is_file:
        with contextlib.suppress(SourceError), importing.without_working_folder():
            return spec(name)
    what = f"the file {reference.source}" if reference.is_file else f"the module {reference.source!r} of this folder"
    edited = reference.is_file and trusted.was_trusted(reference.source)
    note = " (the file has changed since you trained with it)" if edited else ""
    raise UntrustedError(
        f"{source} names {what} as its environment{note}, and importing it runs its code: read it, and if you trust "
        "it, add --trust (trust=True in Python)"
    )


def needs_trust(name: str) -> bool:
    """Whether a new process needs ``--trust`` for a run of this environment: its file is not recorded as trusted."""
    reference = sources.parse_spec_path(name)
    return reference is not None and not (reference.is_file and trusted.is_trusted(reference.source))


def remember_trusted(name: str) -> None:
    """Records that this user trusts the file that a spec path names, until it changes; ignores ids."""
    reference = sources.parse_spec_path(name)
    if reference is not None:
        trusted.remember(_file_of(reference))


def check_trusted(name: str, source: str, *, trust: bool) -> None:
    """Raises an UntrustedError if the code at a path, which ``source`` names, may not run without ``trust``.

    It may if it is this package's, or if this user has used its file before and not changed it since.
    """
    reference = sources.parse_spec_path(name)
    if trust or reference is None or reference.source.partition(".")[0] == NAMESPACE:
        return
    file = _file_of(reference)
    if not Path(file).is_file():
        raise FileNotFoundError(f"{source} names the callback {name}, whose file does not exist: restore it")
    if not trusted.is_trusted(file):
        edited = " (the file has changed since you used it)" * trusted.was_trusted(file)
        raise UntrustedError(
            f"{source} names the callback {name}{edited}, and making it runs code of {file}: read it, and if you trust "
            "it, add --trust (trust=True in Python)"
        )


def _file_of(reference: sources.SpecPath) -> str:
    """Returns the file of a spec path, without importing anything; empty if a module is not found."""
    if reference.is_file:
        return reference.source
    parts, found, folders = reference.source.split("."), None, None
    for end in range(1, len(parts) + 1):
        found = importlib.machinery.PathFinder.find_spec(".".join(parts[:end]), folders)
        folders = found.submodule_search_locations if found else []
    return (found and found.origin) or ""


def _was_imported(reference: sources.SpecPath) -> bool:
    """Whether a spec of this file or module is registered."""
    imported = [origin.reference.rpartition(":")[0] for origin in ORIGINS.values()]
    return reference.source in imported or reference.source in {origin.file for origin in ORIGINS.values()}


def specs(names: Iterable[str]) -> list[Spec]:
    """Returns the specs of ids and spec paths, without duplicates; all specs of a file if its name is omitted."""
    specs_by_id: dict[str, Spec] = {}
    for name in names:
        reference = sources.parse_spec_path(name)
        if reference is not None and not reference.name:
            with loading.undo_on_failure():
                for member, origin in sources.load_all(reference):
                    add(member, origin)
                    specs_by_id[member.id] = SPECS[member.id]
        else:
            member = spec(name)
            specs_by_id[member.id] = member
    return list(specs_by_id.values())


def _similar_path(text: str) -> str:
    """Returns the path of a folder's file of the same name, or of a file given without ``.py``; empty: no file."""
    file_part, colon, name = text.partition(":")
    path = Path(file_part)
    for file in (path.with_name(f"{path.name}.py"), path / f"{path.name}.py") if path.name else ():
        if file.is_file():
            return f"{file}{colon}{name}"
    return ""


def env_spec(id: str | Spec) -> EnvSpec:
    """Returns the spec of a single-agent environment, or raises an UnknownEnvironmentError for a team."""
    requested = spec(id)
    if not isinstance(requested, EnvSpec):
        raise UnknownEnvironmentError(
            f"{requested.id!r} has a team of agents, but a single agent is needed: use "
            f"gpu_envs.make({requested.id!r}, num_envs) or gpu_envs.adapters.pettingzoo"
        )
    return requested


def team_spec(id: str | Spec) -> TeamSpec:
    """Returns the spec of an environment with a team of agents, or raises an UnknownEnvironmentError for one agent."""
    requested = spec(id)
    if not isinstance(requested, TeamSpec):
        raise UnknownEnvironmentError(
            f"{requested.id!r} has one agent: use gpu_envs.make({requested.id!r}) or gymnasium.make_vec"
        )
    return requested


# --- origins ---


def origin_of(id: str) -> Origin:
    """Returns where the spec of this id comes from."""
    return ORIGINS.get(id, BY_HAND)


def portable_name(name: str) -> str:
    """Returns a name that is valid in any process and folder: an id, or the absolute spec path of a user's environment.

    The environment need not exist.
    """
    env_id = name.removeprefix(f"{NAMESPACE}/")
    if env_id in SPECS:
        return origin_of(env_id).reference or name
    path = sources.parse_spec_path(name)
    if path is None:
        return name
    paths = [o.reference for o in ORIGINS.values() if o.reference.rpartition(":")[0] == path.source]
    return paths[0] if not path.name and len(paths) == 1 else str(path)


def id_of(name: str) -> str:
    """Returns the id of an environment, which a spec path names; any other name is returned as it is."""
    return name if sources.parse_spec_path(name) is None else spec(name).id


def pickle_key(spec: Spec) -> str:
    """Returns the key, new at the first call, for ``unpickled_spec`` to find this spec even if its id is reused."""
    if PICKLED_SPECS.get(spec.key) is not spec:  # no key yet, or a copy that has the key of its original
        object.__setattr__(spec, "key", os.urandom(16).hex())
        PICKLED_SPECS[spec.key] = spec
    return spec.key


def unpickled_spec(id: str, place: str, key: str = "") -> Spec:
    """Returns the spec of an environment that was pickled in this process or another one.

    Args:
        id: Id of the environment.
        place: Result of ``portable_name``.
        key: Result of ``pickle_key`` in the other process.
    """
    if (pickled := PICKLED_SPECS.get(key)) is not None:
        return pickled
    registered = SPECS.get(id)
    if registered is not None and origin_of(id).reference in ("", id, place):
        return registered
    if place == id:
        try:
            return spec(id)
        except UnknownEnvironmentError:
            raise UnknownEnvironmentError(
                f"the environment {id!r} was registered by hand in another process, and is not registered in this one: "
                "register it here too (import the module that calls gpu_envs.register), or make it by the path of its "
                "spec, gpu_envs.make('path/to/my_env.py:MY_ENV'), which every process finds"
            ) from None
    try:
        loaded = spec(place)
    except FileNotFoundError as error:
        if registered is not None:  # the file has moved, but was imported before
            return registered
        name = place.rpartition(":")[2]
        raise FileNotFoundError(
            f"{error} The environment {id!r} was made from this file: if it has moved, call "
            f"gpu_envs.spec('new/path.py:{name}') first"
        ) from None
    if loaded.id != id:
        raise UnknownEnvironmentError(f"{place} was {id!r} and now is {loaded.id!r}: restore its id")
    return loaded


def _load_distributions() -> None:
    """Imports and registers the environments of installed distributions, at the first call only."""
    with _LOADING:
        if _LOADED.is_set():
            return
        _LOADED.set()  # first, because a distribution may call ids() while it is imported
        already_registered = set(SPECS)
        for point in sources.installed_entry_points():
            for loaded, origin in sources.load_entry_point(point):
                try:
                    add(loaded, origin)
                except ValueError as error:
                    warnings.warn(str(error), stacklevel=4)
                    if loaded.id not in already_registered:  # two distributions: ambiguous
                        CONFLICTS[loaded.id] = str(error)
