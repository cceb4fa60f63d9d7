"""What several verifications of one model tell together."""

from pathlib import Path

from rutc.verify.judging.compare import OutputComparison
from rutc.verify.judging.tolerance import Level
from rutc.verify.verification import SILENT, Verification, confirmed_outputs, settled, together

REMARK = "the whole: ONNX Runtime differs from float64, rutc does not"


def _output(
    passed: bool = True,
    *,
    contradicted: bool = False,
    judged: str = "float64",
    remark: str = "",
    share: float = 0.0,
    case: str = "",
) -> OutputComparison:
    return OutputComparison(
        "y",
        "float32",
        (3,),
        passed,
        contradicted=contradicted,
        judged=judged,
        remark=remark,
        share=share,
        case=case,
        reason="" if passed else "the whole: rutc agrees with float64, ONNX Runtime is 1 from both",
    )


def _verification(output: OutputComparison) -> Verification:
    at = Path("m.onnx"), Path("m.so"), Level.MODEL, "inputs generated from seed 0", output.case, 1
    return Verification(*at, (output,), 0.0, 0.0, with_truth=1)


def test_a_reading_is_confirmed_by_what_says_something() -> None:
    for sure in (_output(), _output(judged="float64 by noise")):
        assert confirmed_outputs([_verification(sure)]) == {"y"}
    for unsure in (
        _output(passed=False),
        _output(judged="ONNX Runtime"),
        _output(remark=f"{SILENT} all zeros"),
        _output(remark="3 of 3 elements not compared: the model may overflow there"),
    ):
        assert not confirmed_outputs([_verification(unsure)])


def test_a_contradiction_is_told_though_other_inputs_are_nearer_to_the_limit() -> None:
    other = _verification(_output(passed=False, contradicted=True, case="times 64"))
    known = _verification(_output(share=0.9, case="seed 0"))
    found = together([settled(v, {"y"}) for v in (known, other)])
    assert found.passed
    assert found.outputs[0].case == "seed 0"
    assert found.unverified == (f"'y': {REMARK} (times 64)",)


def test_an_output_says_nothing_only_if_it_does_for_all_inputs() -> None:
    silent = _verification(_output(remark=f"{SILENT} all zeros"))
    assert together([silent, _verification(_output())]).unverified == ()
    assert together([silent, silent]).unverified == (f"'y': {SILENT} all zeros",)


def test_agreement_is_told_with_its_reservations() -> None:
    (sure, *_) = _verification(_output()).summary().splitlines()
    assert sure.startswith("1 of 1 outputs agree with float64 and ONNX Runtime ")
    assert "reservation" not in sure
    for remark in (REMARK, f"{SILENT} all NaN"):
        (told, *_) = _verification(_output(remark=remark)).summary().splitlines()
        assert told == f"{sure}; 1 of them with a reservation"
    (failed, *_) = _verification(_output(passed=False, remark=REMARK)).summary().splitlines()
    assert failed.startswith("0 of 1 outputs agree")
    assert "reservation" not in failed
