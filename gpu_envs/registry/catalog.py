"""The environments by their ids and by the places of their specs."""

import contextlib
import dataclasses
import functools
import os
import sys
import threading
import warnings
import weakref
from collections.abc import Iterable
from pathlib import Path

import gymnasium

from gpu_envs.errors import SourceError, UnknownEnvironmentError, UntrustedError, did_you_mean
from gpu_envs.registry import importing, loading, sources
from gpu_envs.registry.sources import BY_HAND, Origin
from gpu_envs.specs.base import Spec
from gpu_envs.specs.single import EnvSpec
from gpu_envs.specs.team import TeamSpec

NAMESPACE = "gpu_envs"

SPECS: dict[str, Spec] = {}
ORIGINS: dict[str, Origin] = {}
CLASHES: dict[str, str] = {}
"""Of an id that two distributions want: what is wrong."""
PICKLED: weakref.WeakValueDictionary[str, Spec] = weakref.WeakValueDictionary()
"""Specs of environments that were pickled or copied in this process, by their keys: their ids may pass to others.

Each stays while it is registered or an environment has it."""
_LOADED = threading.Event()
_LOADING = threading.RLock()
"""Held while distributions are imported, and taken again where one of them asks for an environment meanwhile."""


def register(spec: Spec, *, replace: bool = False) -> None:
    """Makes an environment known here, by its id; a single-agent one to Gymnasium too, as ``gpu_envs/<id>``.

    PettingZoo learns of those with a team of agents when ``gpu_envs.adapters.pettingzoo`` is imported. An environment
    that is named by its place, ``path/to/my_env.py:MY_ENV`` or ``package.module:MY_ENV``, need not be registered.

    Args:
        spec: What the environment is. Registering an equal one again changes nothing.
        replace: Let it take the place of another environment of the same id, as in a notebook where a cell was edited.

    Raises:
        ValueError: The id belongs to another environment.
    """
    if not isinstance(spec, Spec):
        raise TypeError(f"register takes an EnvSpec or a TeamSpec; got {spec!r}")
    add(spec, sources.origin_now(), replace=replace)


def add(spec: Spec, origin: Origin, *, replace: bool = False) -> None:
    """Makes an environment known, and where its spec comes from."""
    known = SPECS.get(spec.id)
    origin = dataclasses.replace(origin, file=str(spec.source_file or ""))
    if known is not None:
        there = origin_of(spec.id)
        same = known is spec or known == spec
        if not (same or replace or origin.replaces(there)):
            raise ValueError(
                f"the id {spec.id!r} is taken by another environment ({there.shown}; the new one: {origin.shown}): "
                "give yours another name or version, or put it in the other's place by "
                "gpu_envs.register(spec, replace=True), as in a notebook where a cell was edited"
            )
        if same and (there.reference or not origin.reference):
            return
        if there.file == origin.file and not origin.reference:
            origin = there  # which still finds it
    loading.on_failure(functools.partial(_put_back, spec.id, known, ORIGINS.get(spec.id)))
    _set(spec, origin)


def _put_back(id: str, spec: Spec | None, origin: Origin | None) -> None:
    """Lets an id stand for what it was before the file that registered it failed."""
    if spec is not None:
        _set(spec, origin or BY_HAND)
        return
    found = SPECS.pop(id, None)
    ORIGINS.pop(id, None)
    gymnasium.registry.pop(f"{NAMESPACE}/{id}", None)
    withdraw = getattr(sys.modules.get("gpu_envs.adapters.pettingzoo"), "withdraw", None)
    if withdraw is not None and isinstance(found, TeamSpec):
        withdraw(id)


def _set(spec: Spec, origin: Origin) -> None:
    SPECS[spec.id] = spec
    ORIGINS[spec.id] = origin
    if isinstance(spec, TeamSpec):
        publish = getattr(sys.modules.get("gpu_envs.adapters.pettingzoo"), "publish", None)
        if publish is not None:  # it has been imported, so PettingZoo knows of those before this one
            publish()
    gymnasium.registry.pop(f"{NAMESPACE}/{spec.id}", None)
    gymnasium.register(  # a team too: both entry points say what to use instead
        id=f"{NAMESPACE}/{spec.id}",
        entry_point="gpu_envs.adapters.gymnasium:SingleEnv",
        vector_entry_point="gpu_envs.making:make_vector_env",
        max_episode_steps=spec.step_limit(spec.check_params({}, 1)),
        reward_threshold=spec.reward_threshold,
        kwargs={"env_id": portable_name(spec.id)},
    )


def ids() -> list[str]:
    """The ids of all environments: those registered, and those of installed distributions, which are imported."""
    _load_distributions()
    return sorted(SPECS)


def registered() -> list[Spec]:
    """What is known by now, without an import of anything."""
    return [SPECS[name] for name in sorted(SPECS)]


def spec(id: str | Spec) -> Spec:
    """The spec of an environment.

    Args:
        id: Its id, with or without ``gpu_envs/``; or the place of its spec, ``path/to/my_env.py:MY_ENV`` or
            ``package.module:MY_ENV``, which is imported and registered. A file with one spec need not say its name.
            Or the spec itself, which is registered.

    Raises:
        UnknownEnvironmentError: There is none of that id.
        FileNotFoundError: There is no such file.
        SourceError: The file or module cannot be imported, or has no such spec.
        ValueError: The id of the spec that is given belongs to another environment.
    """
    if isinstance(id, Spec):
        if id.rules_text is not None:  # of an environment that is to be made again: its id may be another's by now
            return id
        register(id)
        return SPECS[id.id]
    if not isinstance(id, str):
        raise TypeError(f"an environment is named by a string, or is given by its spec; got {type(id).__name__}")
    name = id.removeprefix(f"{NAMESPACE}/")
    if name in SPECS and name not in CLASHES:
        return SPECS[name]
    reference = sources.parse(id)
    if reference is not None:
        with loading.undone_on_failure():
            found, origin = sources.load(reference)
            add(found, origin)
        return SPECS[found.id]
    _load_distributions()
    if name in CLASHES:
        raise ValueError(CLASHES[name])
    if name in SPECS:
        return SPECS[name]
    place = _place_meant(id)
    meant = f". Did you mean {place!r}?" if place else did_you_mean(name, SPECS)
    raise UnknownEnvironmentError(
        f"there is no environment {id!r}{meant} There are: {', '.join(sorted(SPECS))}; one of your own is named by "
        "the place of its spec, such as path/to/my_env.py:MY_ENV"
    )


def spec_of_run(name: str, source: str, *, trust: bool) -> Spec:
    """The spec of the environment that a run's folder or a file of settings names: somebody else may have written it.

    What is installed is imported, and what this process was given by name before; anything else only on trust.

    Raises:
        UntrustedError: A file, or a module of the working folder, would have to be imported.
    """
    reference = sources.parse(name)
    if trust or reference is None or _was_given(reference):
        return spec(name)
    if not reference.is_file:
        with contextlib.suppress(SourceError), importing.installed_alone():
            return spec(name)
    what = f"the file {reference.place}" if reference.is_file else f"the module {reference.place!r} of this folder"
    raise UntrustedError(
        f"{source} names {what} as its environment, and to import it is to run its code: read it, and if you "
        "trust it say so by --trust (trust=True in Python)"
    )


def _was_given(reference: sources.Reference) -> bool:
    """Whether a spec of that place is known here."""
    known = [origin.reference.rpartition(":")[0] for origin in ORIGINS.values()]
    return reference.place in known or reference.place in {origin.file for origin in ORIGINS.values()}


def specs(names: Iterable[str]) -> list[Spec]:
    """The specs of these ids and places, each once, in their order; of a file without a name all of its specs."""
    found: dict[str, Spec] = {}
    for name in names:
        reference = sources.parse(name)
        if reference is not None and not reference.name:
            with loading.undone_on_failure():
                for each, origin in sources.load_all(reference):
                    add(each, origin)
                    found[each.id] = SPECS[each.id]
        else:
            each = spec(name)
            found[each.id] = each
    return list(found.values())


def _place_meant(text: str) -> str:
    """The reference that somebody means who names a folder, or a file without its ending."""
    head, colon, name = text.partition(":")
    path = Path(head)
    for file in (path.with_name(f"{path.name}.py"), path / f"{path.name}.py") if path.name else ():
        if file.is_file():
            return f"{file}{colon}{name}"
    return ""


def env_spec(id: str | Spec) -> EnvSpec:
    """The spec of a single-agent environment."""
    found = spec(id)
    if not isinstance(found, EnvSpec):
        raise UnknownEnvironmentError(
            f"{found.id!r} has a team of agents, and this is for one: use gpu_envs.make({found.id!r}, num_envs), "
            "or gpu_envs.adapters.pettingzoo"
        )
    return found


def team_spec(id: str | Spec) -> TeamSpec:
    """The spec of an environment with a team of agents."""
    found = spec(id)
    if not isinstance(found, TeamSpec):
        raise UnknownEnvironmentError(f"{found.id!r} has one agent: gpu_envs.make({found.id!r}), or gymnasium.make_vec")
    return found


# --- where they come from ---


def origin_of(id: str) -> Origin:
    """Where the spec of this id comes from."""
    return ORIGINS.get(id, BY_HAND)


def portable_name(name: str) -> str:
    """What names the same environment in any process and folder: an id or, of one's own, the place of its spec.

    It need not exist.
    """
    known = name.removeprefix(f"{NAMESPACE}/")
    if known in SPECS:
        return origin_of(known).reference or name
    reference = sources.parse(name)
    if reference is None:
        return name
    found = [o.reference for o in ORIGINS.values() if o.reference.rpartition(":")[0] == reference.place]
    return found[0] if not reference.name and len(found) == 1 else str(reference)


def id_of(name: str) -> str:
    """The id of an environment that is named by its place; of any other the name itself, which need not be known."""
    return name if sources.parse(name) is None else spec(name).id


def pickle_key(spec: Spec) -> str:
    """Returns a key by which ``again`` finds a spec in this process, while it is there, though another has its id."""
    if PICKLED.get(spec.key) is not spec:  # it has no key, or that of the spec that it is a copy of
        object.__setattr__(spec, "key", os.urandom(16).hex())
        PICKLED[spec.key] = spec
    return spec.key


def unpickled_spec(id: str, place: str, key: str = "") -> Spec:
    """The spec of an environment that was made in another process, or in this one.

    Args:
        id: Its id.
        place: Its place, as ``lasting`` gave it.
        key: Its key, as ``pickle_key`` gave it in that process.
    """
    if (own := PICKLED.get(key)) is not None:
        return own
    known = SPECS.get(id)
    if known is not None and origin_of(id).reference in ("", id, place):
        return known
    if place == id:
        try:
            return spec(id)
        except UnknownEnvironmentError:
            raise UnknownEnvironmentError(
                f"the environment {id!r} was registered by hand in another process, and is not known in this one: "
                "register it here too (import what does gpu_envs.register), or make it by the place of its spec, "
                "gpu_envs.make('path/to/my_env.py:MY_ENV'), which every process finds"
            ) from None
    try:
        found = spec(place)
    except FileNotFoundError as error:
        if known is not None:  # it has moved, and was found before
            return known
        name = place.rpartition(":")[2]
        raise FileNotFoundError(
            f"{error} The environment {id!r} was made from it: if it has moved, call "
            f"gpu_envs.spec('new/place.py:{name}') first"
        ) from None
    if found.id != id:
        raise UnknownEnvironmentError(f"{place} is {found.id!r} by now, and was {id!r}: name it as it was")
    return found


def _load_distributions() -> None:
    """Registers what installed distributions have, once."""
    with _LOADING:
        if _LOADED.is_set():
            return
        _LOADED.set()  # at once: a distribution may ask for the ids while it is imported
        before = set(SPECS)
        for point in sources.installed():
            for found, origin in sources.of_distribution(point):
                try:
                    add(found, origin)
                except ValueError as error:
                    warnings.warn(str(error), stacklevel=4)
                    if found.id not in before:  # it is unknown which of the two is meant
                        CLASHES[found.id] = str(error)
