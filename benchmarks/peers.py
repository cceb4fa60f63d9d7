"""The peers: each turns an ONNX file, a thread count and inputs into a function that runs it."""

import importlib.util
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
    import tempfile

    import iree.compiler as compiler
    import iree.runtime as runtime
    from iree.compiler.tools import import_onnx

    with tempfile.TemporaryDirectory() as folder:
        mlir = Path(folder) / "model.mlir"
        import_onnx.main(
            import_onnx.parse_arguments([str(model), "-o", str(mlir), "--opset-version", "17"])
        )
        binary = compiler.compile_file(
            str(mlir),
            input_type="onnx",
            target_backends=["llvm-cpu"],
            extra_args=["--iree-llvmcpu-target-cpu=host"],
        )
    runtime.flags.parse_flags(f"--task_topology_group_count={threads}")
    config = runtime.Config("local-task")
    context = runtime.SystemContext(config=config)
    context.add_vm_module(runtime.VmModule.copy_buffer(config.vm_instance, binary))
    (name,) = [name for name in context.modules.module.vm_module.function_names if "$" not in name]
    function = getattr(context.modules.module, name)

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
