"""The peers: each turns an ONNX file, a thread count and inputs into a function that runs it."""

import importlib.util
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

from rutc.runtime import load
from rutc.verify.reference import Reference

Array = npt.NDArray[np.generic]
Inputs = Mapping[str, Array]
Run = Callable[[], object]
Prepare = Callable[[Path, int, Inputs], Run]


def prepare_rutc(library: Path, threads: int, inputs: Inputs) -> Run:
    """Returns a run of a compiled model."""
    return partial(load(library, threads=threads).run, None, inputs)


def prepare_onnxruntime(model: Path, threads: int, inputs: Inputs) -> Run:
    """Returns a run of ONNX Runtime with all its optimisations."""
    return partial(Reference(model, threads, optimise=True).run, inputs)


def prepare_openvino(model: Path, threads: int, inputs: Inputs) -> Run:
    """Returns a run of OpenVINO's CPU plugin in float32, with static shapes."""
    import openvino

    core = openvino.Core()
    network = core.read_model(model)
    network.reshape({name: list(value.shape) for name, value in inputs.items()})
    settings = {
        "INFERENCE_NUM_THREADS": threads,
        "NUM_STREAMS": 1,
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_PRECISION_HINT": "f32",
    }
    request = core.compile_model(network, "CPU", settings).create_infer_request()
    return partial(request.infer, dict(inputs))


def prepare_iree(model: Path, threads: int, inputs: Inputs) -> Run:
    """Returns a run of IREE compiled for this CPU."""
    import iree.compiler as compiler
    import iree.runtime as runtime

    with tempfile.TemporaryDirectory() as folder:
        mlir = Path(folder) / "model.mlir"
        importer = [sys.executable, "-m", "iree.compiler.tools.import_onnx"]
        arguments = [str(model), "-o", str(mlir), "--opset-version", "17"]
        subprocess.run([*importer, *arguments], check=True, capture_output=True)
        binary = compiler.compile_file(
            str(mlir),
            input_type="onnx",
            target_backends=["llvm-cpu"],
            extra_args=["--iree-llvmcpu-target-cpu=host"],
        )
    runtime.flags.parse_flags(f"--task_topology_group_count={threads}")
    device = runtime.get_device("local-task", cache=False)
    context = runtime.SystemContext(config=runtime.Config(device=device))
    program = runtime.VmModule.copy_buffer(context.instance, binary)
    context.add_vm_module(program)
    (name,) = [name for name in program.function_names if not re.search(r"\$|__init", name)]
    function = context.modules[program.name][name]

    def run() -> object:
        results = function(*inputs.values())
        several = results if isinstance(results, tuple) else (results,)
        return [result.to_host() for result in several]

    return run


def installed_peers() -> dict[str, Prepare]:
    """Returns the peers that are installed, ONNX Runtime first."""
    peers: dict[str, Prepare] = {"onnxruntime": prepare_onnxruntime}
    if importlib.util.find_spec("openvino") is not None:
        peers["openvino"] = prepare_openvino
    if importlib.util.find_spec("iree") is not None:
        peers["iree"] = prepare_iree
    return peers
