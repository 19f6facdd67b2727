"""Export of trained policies, as ONNX models that map observations to actions, or as weights in a safetensors file."""

import copy
import dataclasses
import importlib
import itertools
import json
import logging
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor, nn

import gpu_envs
from gpu_envs.extras import extra
from gpu_envs.training.algorithms import OffPolicy
from gpu_envs.training.assembly import case_of, weights_of
from gpu_envs.training.engines import Case, torch_engine
from gpu_envs.training.engines.base import ActRequest, Networks
from gpu_envs.training.engines.torch import FORBIDDEN, matmul_precision
from gpu_envs.training.networks import PolicyModule
from gpu_envs.training.observations import join_rows
from gpu_envs.training.policy import learns
from gpu_envs.training.record.checkpoint import FORMAT, WEIGHTS, atomic_write
from gpu_envs.training.record.run_directory import RunDirectory
from gpu_envs.training.recurrent import RecurrentModule
from gpu_envs.training.runs import load_policies


def export_policies(
    run: str | Path | RunDirectory,
    path: str | Path,
    *,
    sampled: bool = False,
    modules: Mapping[str, nn.Module] | None = None,
    trust: bool = False,
) -> list[Path]:
    """Write the policies that a run has trained to files for other programs; return the files' paths.

    Args:
        run: Run directory.
        path: ``policy.onnx`` for an ONNX model, which is compared with torch first, or for a team a model per policy,
            ``policy-tagger.onnx`` and so on. ``policy.safetensors`` for all weights, which ``load_policies`` reads,
            with a card of the run, which is also written to ``policy.json``; without critics that see more than actors.
        sampled: Whether an ONNX model draws actions by its input ``noise``, instead of taking the most likely ones.
        modules: As in ``load_policies``.
        trust: As in ``load_policies``.
    """
    path, files = Path(path), dict[Path, bytes]()
    if path.suffix not in (".onnx", WEIGHTS):
        raise ValueError(f"the file is {str(path)!r}; give a name that ends in .onnx or {WEIGHTS}")
    policies = load_policies(run, device="cpu", modules=modules, purpose="export", trust=trust)
    config, roles = policies.config, {name: parts[0].role for name, parts in policies.parts.items() if learns(name)}
    spec, spaces = gpu_envs.spec(config.env), {n: {"features": r.features, **vars(r.head)} for n, r in roles.items()}
    about = {"format": FORMAT, "gpu_envs": gpu_envs.__version__, "env": spec.id, "params": config.params}
    about |= {"steps": policies.steps, "returns": {k: mean for k, mean in policies.returns.items() if mean == mean}}
    card = json.dumps(about | {"policies": spaces, "config": config.flat()}, indent=2, default=lambda a: a.tolist())
    if path.suffix == WEIGHTS:
        tensors: dict[str, Tensor] = {}
        for name in roles:
            for part, value in weights_of(policies.networks[name]).items():
                named = {"": value} if isinstance(value, Tensor) else value or {}
                tensors |= {f"{name}:{part}:{key}": tensor for key, tensor in named.items()}
        with extra("safetensors", "safetensors"):
            from safetensors.torch import save
        files = {path: save(tensors, {"gpu_envs": card}), path.with_suffix(".json"): card.encode()}
    else:
        with extra("onnx", "onnx", "onnxruntime", "onnxscript"):
            onnx, runtime, _ = map(importlib.import_module, ("onnx", "onnxruntime", "onnxscript"))
        cases = {name: case_of(role, config.for_policy(name), "cpu", learns=False) for name, role in roles.items()}
        functions = {name: _PolicyFunction(case, policies.networks[name], sampled) for name, case in cases.items()}
        env, networks = policies.make(8), {**policies.networks, **functions}
        act, (observations, _) = dataclasses.replace(policies, networks=networks).acting_in(env), env.reset(seed=0)
        for _ in range(8):
            observations, *_ = env.step(act(observations))
        texts = {key: value if isinstance(value, str) else json.dumps(value) for key, value in json.loads(card).items()}
        for name, function in functions.items():
            model = function.export(name, runtime)
            initial = {}
            if isinstance(function.module, RecurrentModule):
                initial["initial_state"] = json.dumps(function.module.initial_state(1)[0].tolist())
            onnx.helper.set_model_props(model, {"policy": name, **initial, **texts})
            files[path.with_stem(path.stem + f"-{name}" * spec.has_team)] = model.SerializeToString()
    for file_path, content in files.items():
        with atomic_write(file_path) as file:
            file.write(content)
    return list(files)


@final
class _PolicyFunction(nn.Module, Networks):
    """A policy as a function of observations, action masks and noise; it acts as torch does, and records requests."""

    def __init__(self, case: Case, networks: Any, sampled: bool) -> None:
        super().__init__()
        self.case, self.module, self.scale, self.sampled = case, networks.module, networks.scale, sampled
        self.epsilon, self.requests, self.states = networks.epsilon, list[ActRequest](), list[Tensor]()
        self.state_size = networks.state_size
        case = dataclasses.replace(case, network=dataclasses.replace(case.network, precision="float32"))
        self.networks: Networks = torch_engine(case).make(case, self.module, self.scale, None)

    def act(self, request: ActRequest) -> None:
        if request.recurrence is not None:
            self.states.append(request.recurrence.first_state(self.module).clone())
        self.networks.act(request)
        self.requests.append(copy.deepcopy(request))

    def forward(
        self,
        observation: Tensor,
        action_mask: Tensor | None = None,
        state: Tensor | None = None,
        noise: Tensor | None = None,
    ) -> tuple[Tensor, ...]:
        """Return the environment's actions, and logits, Q values or means, in units where the bounds are -1 and 1.

        With memory also return the next state.
        """
        rows = observation.clone() if self.scale is None else self.scale(observation)
        if state is None:
            return self._actions(self._outputs(rows), action_mask, noise)
        starts = torch.zeros_like(state[:, :1].T, dtype=torch.bool)
        parameters, _, next_state = self.module(rows.unsqueeze(0), state, starts)
        return *self._actions(parameters[0], action_mask, noise), next_state

    def _outputs(self, rows: Tensor) -> Tensor:
        """Return the outputs of a module without memory that determine its actions."""
        function = self.module.actor if isinstance(self.case.algorithm, OffPolicy) else self.module
        outputs = (function.distribution if isinstance(function, PolicyModule) else function)(rows)
        first: Tensor = outputs[0] if isinstance(outputs, tuple) else outputs
        return first

    def _actions(self, outputs: Tensor, action_mask: Tensor | None, noise: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the environment's actions, and logits, Q values or means."""
        head, algorithm, choices = self.case.head, self.case.algorithm, list[Tensor]()
        if head.kind == "box":
            mean, low, high = outputs[:, : head.width], torch.tensor(head.low), torch.tensor(head.high)
            if isinstance(algorithm, OffPolicy):
                action = mean.tanh() if noise is None else algorithm.explore(outputs, noise)
            else:
                action = mean if noise is None else mean + outputs[:, head.width :].exp() * noise
            return (low + (action.clamp(-1.0, 1.0) + 1.0) * (high - low) / 2.0).clamp(low, high), mean
        scores = outputs if action_mask is None else torch.where(action_mask.bool(), outputs, FORBIDDEN)
        end = 0
        for size, group in itertools.groupby(head.sizes):  # elements of one size together: a model may have hundreds
            shape = -1, len([*group]), size
            start, end = end, end + shape[1] * size
            logits = scores[:, start:end].reshape(shape)
            if noise is not None and self.epsilon is not None:
                allowed, best = logits > FORBIDDEN, nn.functional.one_hot(logits.argmax(2), size)
                shares = self.epsilon / allowed.sum(2, keepdim=True).clamp(min=1) + (1.0 - self.epsilon) * best
                logits = torch.where(allowed, shares.clamp(min=1e-30).log(), FORBIDDEN)
            if noise is not None:  # Gumbel-max; the sum with a forbidden logit itself would lose the noise
                gumbel = -(-noise[:, start:end].reshape(shape).log()).log()
                logits = logits - logits.amax(2, keepdim=True) + gumbel
            choices.append(logits.argmax(2))
        actions = torch.cat(choices, 1) + torch.tensor(head.starts)
        return actions[:, 0] if head.scalar else actions, outputs

    @torch.no_grad()
    def export(self, name: str, runtime: Any) -> Any:
        """Return an ONNX model; a ValueError if its results for the recorded requests are not torch's, within 1e-5."""
        head, box = self.case.head, self.case.head.kind == "box"
        names = {"observation": "observations", "action_mask": "action_mask", "actions": "acted" if box else "actions"}
        recorded = {key: [getattr(request, field) for request in self.requests] for key, field in names.items()}
        inputs = {key: torch.cat([*map(join_rows, rows)]) for key, rows in recorded.items() if rows[0] is not None}
        if self.states:
            inputs["state"] = torch.cat(self.states)
        seen = [inputs[key].isfinite().all(1) for key in ("observation", "state") if key in inputs]
        finite = torch.stack(seen).all(0)  # rows of inactive agents may be NaN, and their states
        inputs = {key: tensor[finite] for key, tensor in inputs.items()}
        actions = inputs.pop("actions")
        if self.sampled:  # equal noise for all choices, and none for a box, draw the most likely actions
            inputs["noise"] = torch.full((len(actions), head.width if box else head.parameters), 0.0 if box else 0.5)
        kind = "mean" if box else "logits" if self.epsilon is None else "q_values"
        output_names = ["action", kind, *["next_state"] * bool(self.states)]
        options: dict[str, Any] = {"dynamo": True, "verbose": False, "output_names": output_names}
        options["dynamic_shapes"] = {key: {0: torch.export.Dim("batch")} for key in inputs}
        logging.getLogger("torch.onnx").setLevel("ERROR")
        with warnings.catch_warnings(action="ignore"), matmul_precision("float32"):
            program: Any = torch.onnx.export(self.eval(), (), kwargs=inputs, **options)
            _, expected, *next_state = self(**inputs)
        model = program.model_proto
        session = runtime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
        results = session.run(None, {key: tensor.numpy() for key, tensor in inputs.items()})
        action, outputs, *states = map(torch.from_numpy, results)
        scale = actions if box else expected
        if not box:  # compare the outputs of the choices; a sampled action of epsilon 1 is arbitrary
            action = actions if self.sampled and self.epsilon is not None else action.view(actions.shape)
            allowed = inputs.get("action_mask", torch.ones_like(expected)).bool()
            scores = torch.where(allowed, expected, FORBIDDEN)
            columns = torch.tensor([0, *head.sizes]).cumsum(0)[:-1] - torch.tensor(head.starts)
            action, actions = (scores.gather(1, each.long() + columns) for each in (action, actions))
        pairs = [(outputs, expected), *zip(states, next_state, strict=True)]
        close = all(torch.allclose(a, b, 0.0, 1e-5 * float(b.abs().max())) for a, b in pairs)
        if not (close and torch.allclose(action, actions, 0.0, 1e-5 * float(scale.abs().max()))):
            raise ValueError(f"the ONNX model of {name!r} differs from torch; give {WEIGHTS}, for the exact weights")
        return model
