"""The peers: each turns an ONNX file, a thread count, inputs and outputs into a run of it.

Every peer computes in float32, with static shapes, and without tuning. Those that have several
sets of options for speed are compiled with each, and the fastest counts. Inputs and outputs are
bound before the first run where outputs have room; a peer that gives outputs in memory of its own
leaves them there. Where they have none, each run takes arrays and gives arrays.
"""

import importlib.util
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

from rutc.verify.bench import Room, aligned, allocated, run_onnxruntime
from rutc.verify.interleaved import Job, Run

Array = npt.NDArray[np.generic]
Inputs = Mapping[str, Array]
Prepare = Callable[[Path, int, Inputs, Room | None], Run]

IREE_OPTIONS: tuple[tuple[str, ...], ...] = (
    (),
    (
        "--iree-opt-level=O3",
        "--iree-opt-data-tiling",
        "--iree-dispatch-creation-experimental-set-data-tiling-ops=matmul,convolution",
        "--iree-llvmcpu-enable-ukernels=all",
    ),
)
"""IREE's defaults suit some models, and data tiling suits others."""


def prepare_openvino(
    model: Path, threads: int, inputs: Inputs, room: Room | None, precision: str = "f32"
) -> Run:
    """Returns a run of OpenVINO's CPU plugin, with static shapes.

    Without a precision it takes its own default: bf16 where the processor multiplies that faster.
    """
    import openvino

    core = openvino.Core()
    network = core.read_model(model)
    network.reshape({name: list(value.shape) for name, value in inputs.items()})
    settings = {
        "INFERENCE_NUM_THREADS": threads,
        "NUM_STREAMS": 1,
        "PERFORMANCE_HINT": "LATENCY",
    }
    if precision:
        settings["INFERENCE_PRECISION_HINT"] = precision
    compiled = core.compile_model(network, "CPU", settings)
    request = compiled.create_infer_request()
    if room is None:
        return partial(request.infer, dict(inputs))
    given = {name: aligned(array) for name, array in inputs.items()}
    made = allocated(room)
    for name, array in (given | made).items():
        request.set_tensor(name, openvino.Tensor(array, shared_memory=True))

    # A request does not hold the arrays whose memory its tensors share.
    held = given, made

    def run() -> object:
        request.infer(share_outputs=True)
        return held[1]

    return run


def prepare_iree(model: Path, threads: int, inputs: Inputs, room: Room | None) -> Run:
    """Returns a run of IREE compiled for this CPU, with the faster of its sets of options."""
    bound = room is not None
    return fastest([_iree_run(b, threads, inputs, bound=bound) for b in _iree_binaries(model)])


def _iree_binaries(model: Path) -> tuple[bytes, ...]:
    """What IREE's compiler makes of a model with each set of options that it accepts."""
    import iree.compiler as compiler

    with tempfile.TemporaryDirectory() as folder:
        mlir = Path(folder) / "model.mlir"
        importer = [sys.executable, "-m", "iree.compiler.tools.import_onnx"]
        arguments = [str(model), "-o", str(mlir), "--opset-version", "17"]
        subprocess.run([*importer, *arguments], check=True, capture_output=True)
        binaries: list[bytes] = []
        for options in IREE_OPTIONS:
            try:
                binary = compiler.compile_file(
                    str(mlir),
                    input_type="onnx",
                    target_backends=["llvm-cpu"],
                    extra_args=["--iree-llvmcpu-target-cpu=host", *options],
                )
            except compiler.CompilerToolError:
                continue
            binaries.append(binary)
    if not binaries:
        raise ValueError("iree-compile accepts the model with none of the sets of options")
    return tuple(binaries)


def _iree_run(binary: bytes, threads: int, inputs: Inputs, *, bound: bool) -> Run:
    import iree.runtime as runtime

    runtime.flags.parse_flags(f"--task_topology_group_count={threads}")
    device = runtime.get_device("local-task", cache=False)
    context = runtime.SystemContext(config=runtime.Config(device=device))
    program = runtime.VmModule.copy_buffer(context.instance, binary)
    context.add_vm_module(program)
    (name,) = [name for name in program.function_names if not re.search(r"\$|__init", name)]
    function = context.modules[program.name][name]
    arguments = list(inputs.values())
    if bound:
        arguments = [runtime.asdevicearray(device, x) for x in arguments]

    def run() -> object:
        results = function(*arguments)
        several = results if isinstance(results, tuple) else (results,)
        for result in several:
            # It waits for the result and maps its memory, which goes with it.
            result.to_host()
        return several

    return run


def prepare_tvm(model: Path, threads: int, inputs: Inputs, room: Room | None) -> Run:
    """Returns a run of TVM's default build for this CPU, which tunes nothing."""
    import tvm
    from tvm import relax

    tvm.get_global_func("runtime.config_threadpool")(1, threads)
    program, names = _tvm_program(model, tuple((n, x.shape) for n, x in inputs.items()))
    machine = relax.VirtualMachine(program, tvm.cpu())
    arguments = [tvm.runtime.tensor(np.ascontiguousarray(inputs[name])) for name in names]

    def run() -> object:
        results = machine["main"](*arguments)
        several = [results] if hasattr(results, "numpy") else list(results)
        return several if room is not None else [result.numpy() for result in several]

    return run


def _tvm_program(
    model: Path, shapes: tuple[tuple[str, tuple[int, ...]], ...]
) -> tuple[Any, tuple[str, ...]]:
    """TVM's executable of a model, and its inputs in order."""
    import tvm
    from tvm import relax
    from tvm.relax.frontend.onnx import from_onnx

    proto = onnx.load(model)
    given = {name: list(shape) for name, shape in shapes}
    module = from_onnx(proto, shape_dict=given, sanitize_input_names=False)
    cpu = tvm.target.codegen.llvm_get_system_cpu()
    target = tvm.target.Target({"kind": "llvm", "mcpu": cpu, "num-cores": os.cpu_count() or 1})
    constants = {x.name for x in proto.graph.initializer}
    names = tuple(x.name for x in proto.graph.input if x.name not in constants)
    return relax.build(module, target=target), names


def prepare_torch(model: Path, threads: int, inputs: Inputs, room: Room | None) -> Run:
    """Returns a run of torch.compile on the network that the zoo exported `model` from.

    Raises:
        ValueError: the zoo has the model from elsewhere, so that there is no such network.
    """
    import torch

    from rutc.models.exports import NETWORKS

    if model.stem not in NETWORKS:
        raise ValueError(f"{model.stem} is no export of a PyTorch network")
    torch.set_num_threads(threads)
    compiled = torch.compile(NETWORKS[model.stem]().module.eval(), dynamic=False)
    tensors = [torch.from_numpy(np.ascontiguousarray(x)) for x in inputs.values()]

    def run() -> object:
        with torch.inference_mode():
            return compiled(*tensors)

    return run


def run_in_one_buffer(model: Path, threads: int, inputs: Inputs, longest: int) -> Run:
    """Returns a run of ONNX Runtime that appends to the caches where they lie."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 4
    session = ort.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
    binding = session.io_binding()
    held: list[object] = []
    for name, array in inputs.items():
        place = aligned(array)
        if name.startswith("past"):
            place = aligned(np.zeros((*array.shape[:2], longest, array.shape[3]), array.dtype))
            place[:, :, : array.shape[2]] = array
        value = ort.OrtValue.ortvalue_from_numpy(place)
        binding.bind_ortvalue_input(name, value)
        if name.startswith("past"):
            binding.bind_ortvalue_output(name.replace("past", "present", 1), value)
        held += [place, value]
    binding.bind_output("logits")

    def run() -> object:
        session.run_with_iobinding(binding)
        return binding, held

    return run


def fastest(runs: Sequence[Run], repeats: int = 3) -> Run:
    """Returns the run whose best of a few repeats is shortest."""
    if len(runs) == 1:
        return runs[0]

    def shortest(run: Run) -> float:
        run()
        times = []
        for _ in range(repeats):
            begin = time.perf_counter()
            run()
            times.append(time.perf_counter() - begin)
        return min(times)

    return min(runs, key=shortest)


PEERS: dict[str, tuple[str, Prepare]] = {
    "onnxruntime": ("onnxruntime", run_onnxruntime),
    "openvino": ("openvino", prepare_openvino),
    "iree": ("iree", prepare_iree),
    "tvm": ("tvm", prepare_tvm),
    "torch.compile": ("torch", prepare_torch),
}
"""Peer -> (the package it needs, what prepares it)."""


def installed_peers() -> dict[str, Prepare]:
    """Returns the peers that are installed, ONNX Runtime first."""
    return {
        name: prepare
        for name, (package, prepare) in PEERS.items()
        if importlib.util.find_spec(package) is not None
    }


def peer_jobs(
    names: Sequence[str], model: Path, threads: int, inputs: Inputs, room: Room | None
) -> dict[str, Job]:
    """Returns the jobs of those of the named peers that are installed."""
    return {
        name: Job(prepare, (model, threads, inputs, room), PEERS[name][0])
        for name, prepare in installed_peers().items()
        if name in names
    }
