"""Which backend an engine runs on, and why: chosen once, told in one line, and refused in words that help."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from octavo.cli import doctor
from octavo.cli.main import main
from octavo.config import StartOptions
from octavo.engine import backends
from octavo.engine.backends import choose_backend
from octavo.errors import ConfigError, ModelNotFound
from octavo.serving.start import build_engine

pytestmark = pytest.mark.full

NO_GPU = "no GPU is used: "


@pytest.fixture
def no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backends, "_DRIVERS", (Path("/no/such/driver"),))


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "nvidiactl").touch()
    monkeypatch.setattr(backends, "_DRIVERS", (Path("/no/such/driver"), tmp_path / "nvidiactl"))


@pytest.fixture
def no_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "cuda", None)


@pytest.fixture
def two_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Fake GPU")


def without(monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    """The package is not installed, as far as the choice can tell."""
    plain = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *more: None if name == package else plain(name, *more)
    )


# -- auto ----------------------------------------------------------------------------------------------------
@pytest.mark.usefixtures("no_driver")
def test_without_a_driver_native_is_chosen_and_the_reason_names_the_file() -> None:
    choice = choose_backend(StartOptions())
    assert (choice.backend.name, choice.backend.device) == ("native", "cpu")
    assert choice.reason == f"{NO_GPU}this machine has no NVIDIA driver (/no/such/driver does not exist)"


@pytest.mark.usefixtures("driver", "no_cuda")
def test_with_a_driver_and_a_torch_without_cuda_native_is_chosen_and_the_reason_names_the_build() -> None:
    choice = choose_backend(StartOptions())
    assert choice.backend.name == "native"
    assert choice.reason == f"{NO_GPU}this torch ({torch.__version__}) is a build without CUDA"


@pytest.mark.usefixtures("driver")
def test_with_a_driver_and_no_device_native_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    choice = choose_backend(StartOptions())
    assert choice.backend.name == "native"
    assert choice.reason == f"{NO_GPU}torch {torch.__version__} sees no CUDA device"


@pytest.mark.usefixtures("driver")
@pytest.mark.parametrize("package", ["torch", "triton"])
def test_with_a_driver_and_without_the_extra_native_is_chosen_and_the_reason_names_the_extra(
    monkeypatch: pytest.MonkeyPatch, package: str
) -> None:
    without(monkeypatch, package)
    choice = choose_backend(StartOptions())
    assert choice.backend.name == "native"
    assert choice.reason == f"{NO_GPU}{package} is not installed; pip install 'octavo[cuda]'"


@pytest.mark.parametrize("package", ["torch", "triton"])
def test_torch_that_is_asked_for_and_not_installed_is_refused_with_the_extra(
    monkeypatch: pytest.MonkeyPatch, package: str
) -> None:
    without(monkeypatch, package)
    for options in (StartOptions(backend="torch", device="cuda"), StartOptions(device="cuda")):
        with pytest.raises(ConfigError, match=rf"needs {package}, .*pip install 'octavo\[cuda\]'"):
            choose_backend(options)


@pytest.mark.usefixtures("no_driver")
def test_torch_without_a_driver_runs_on_its_own_cpu() -> None:
    for device, why in (
        ("auto", f"{NO_GPU}this machine has no NVIDIA driver"),
        ("cpu", "asked for; op after"),
    ):
        choice = choose_backend(StartOptions(backend="torch", device=device))
        assert (choice.backend.name, choice.backend.device) == ("torch", "torch's cpu")
        assert choice.reason.startswith(why)
        assert "slow" in choice.reason


def test_torchs_own_cpu_needs_no_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    without(monkeypatch, "triton")
    assert choose_backend(StartOptions(backend="torch", device="cpu")).backend.device == "torch's cpu"
    code = (
        "import sys; from octavo.config import StartOptions as Options; "
        "from octavo.engine.backends import choose_backend; "
        "choose_backend(Options(backend='torch', device='cpu')); print('triton' in sys.modules)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert run.stdout.strip() == "False", run.stderr


@pytest.mark.usefixtures("driver")
def test_the_processor_that_is_asked_for_is_chosen_whatever_else_is_there() -> None:
    for options in (StartOptions(backend="native"), StartOptions(device="cpu")):
        choice = choose_backend(options)
        assert (choice.backend.name, choice.backend.device, choice.reason) == ("native", "cpu", "asked for")


def test_backends_and_weights_that_decide_bits_have_ids_of_their_own() -> None:
    options = [
        StartOptions(backend="native", weights="f32"),
        StartOptions(backend="reference", weights="f32"),
        StartOptions(backend="torch", device="cpu", weights="f32"),
        StartOptions(backend="torch", device="cpu", weights="bf16"),
    ]
    ids = [choose_backend(one).backend.arithmetic_id for one in options]
    assert len(set(ids)) == len(ids), ids


# -- what is refused -----------------------------------------------------------------------------------------
@pytest.mark.usefixtures("no_driver", "no_cuda")
@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"device": "cuda"}, ["device is cuda", "a build without CUDA", "allowed here: cpu"]),
        ({"device": "cuda:99"}, ["device is cuda:99", "a build without CUDA", "allowed here: cpu"]),
        (
            {"backend": "native", "device": "cuda"},
            ["device is cuda", "backend is native", "auto, cpu", "give --backend torch"],
        ),
        ({"backend": "reference", "device": "cuda:1"}, ["device is cuda:1", "backend is reference"]),
        ({"backend": "native", "kv": "fp8"}, ["kv is fp8", "f32, bf16, int8", "--backend torch"]),
        ({"kv": "fp16"}, ["kv is fp16", "f32, bf16, int8", "--backend torch"]),
        ({"backend": "reference", "kv": "fp8"}, ["kv is fp8", "f32, bf16, int8", "--backend torch"]),
        ({"backend": "torch", "device": "cpu", "weights": "q4"}, ["weights is q4", "auto, f32, bf16"]),
        ({"backend": "torch", "device": "cpu", "weights": "int8"}, ["weights is int8", "auto, f32, bf16"]),
        ({"device": "tpu"}, ["device is 'tpu'", "auto, cpu, cuda, cuda:N"]),
        ({"device": "cuda:"}, ["device is 'cuda:'", "auto, cpu, cuda, cuda:N"]),
        ({"device": "cuda:0\n"}, ["device is 'cuda:0\\n'", "auto, cpu, cuda, cuda:N"]),
        ({"device": "cuda:999"}, ["device is 'cuda:999'", "auto, cpu, cuda, cuda:N"]),
        ({"backend": "tpu"}, ["backend is 'tpu'", "auto, native, torch, reference"]),
        ({"attention": "nonsense"}, ["attention is 'nonsense'", "triton, flash"]),
        ({"backend": "native", "attention": "flash"}, ["attention is flash", "triton", "--device cuda"]),
        ({"backend": "torch", "device": "cpu", "attention": "flash"}, ["attention is flash", "triton"]),
        ({"kv": "int4"}, ["kv is 'int4'", "f32, bf16, int8, fp16, fp8"]),
    ],
    ids=str,
)
def test_a_refusal_says_what_was_given_what_is_allowed_and_what_to_change(
    given: dict[str, str], says: list[str]
) -> None:
    with pytest.raises(ConfigError) as refused:
        choose_backend(StartOptions(**given))  # type: ignore[arg-type]
    for part in says:
        assert part in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.usefixtures("driver", "two_devices")
@pytest.mark.parametrize("device", ["cuda:2", "cuda:99"])
def test_a_device_behind_the_last_is_refused_with_those_that_are_there(device: str) -> None:
    for options in (StartOptions(device=device), StartOptions(backend="torch", device=device)):
        with pytest.raises(ConfigError, match=f"{device}, .*there are 2 here; .*: cpu, cuda:0, cuda:1"):
            choose_backend(options)


@pytest.mark.usefixtures("driver", "two_devices")
def test_a_device_that_is_too_old_is_refused_with_what_the_kernels_need(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    with pytest.raises(ConfigError, match=r"device is cuda:1, .* 7\.5; .* 8\.0 .*allowed here: cpu"):
        choose_backend(StartOptions(device="cuda:1"))


@pytest.mark.usefixtures("driver", "two_devices")
def test_auto_on_a_device_that_is_too_old_gives_native_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    choice = choose_backend(StartOptions())
    assert choice.backend.name == "native"
    assert "7.5" in choice.reason


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--device", "tpu"], "device is 'tpu'; allowed: auto, cpu, cuda, cuda:N"),
        (["--backend", "native", "--device", "cuda"], "give --backend torch"),
        (["--backend", "native", "--kv", "fp8"], "kv is fp8"),
        (["--backend", "torch", "--device", "cpu", "--weights", "q4"], "allowed: auto, f32, bf16"),
        (["--attention", "nonsense"], "attention is 'nonsense'; allowed: triton, flash"),
    ],
)
@pytest.mark.parametrize("command", ["serve", "doctor"])
def test_a_command_refuses_in_one_message_and_status_two(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    command: str,
    words: list[str],
    says: str,
) -> None:
    port = ["--port", "0"] if command == "serve" else []
    monkeypatch.setattr(sys, "argv", ["octavo", command, *port, *words])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 2
    written = " ".join(capsys.readouterr().err.split())
    assert says in written
    assert "Traceback" not in written


# -- where it is told ----------------------------------------------------------------------------------------
@pytest.mark.usefixtures("no_driver")
@pytest.mark.parametrize(
    ("options", "line"),
    [
        (StartOptions(), f"backend native on cpu: {NO_GPU}this machine has no NVIDIA driver"),
        (
            StartOptions(backend="torch", device="cpu"),
            "backend torch on torch's cpu: asked for; op after op, slow, and for tests",
        ),
    ],
    ids=["auto", "torch"],
)
def test_the_choice_is_logged_in_one_line_before_the_model_is_looked_for(
    caplog: pytest.LogCaptureFixture, options: StartOptions, line: str
) -> None:
    caplog.set_level("INFO", "octavo.start")
    with pytest.raises(ModelNotFound):
        build_engine("/no/such/model.gguf", options, print)
    [told] = [record.getMessage() for record in caplog.records if record.name == "octavo.start"]
    assert told.startswith(line)
    assert "\n" not in told


@pytest.mark.real_model
@pytest.mark.usefixtures("no_driver")
def test_doctor_prints_the_backend_and_why(capsys: pytest.CaptureFixture[str]) -> None:
    doctor.run(None, StartOptions(kv_memory_bytes=2**26))
    said = " ".join(capsys.readouterr().out.split())
    assert (
        f"native on cpu: {NO_GPU}this machine has no NVIDIA driver (/no/such/driver does not exist)" in said
    )


# -- what it costs -------------------------------------------------------------------------------------------
AUTO = """
import sys
from pathlib import Path
from octavo.config import StartOptions
from octavo.engine import backends
backends._DRIVERS = (Path("/no/such/driver"),)
for options in (StartOptions(), StartOptions(backend="native"), StartOptions(device="cpu")):
    assert backends.choose_backend(options).backend.name == "native"
print([m for m in sys.modules if m.split(".")[0] in ("torch", "triton") or m.startswith("octavo.device")])
"""


def test_a_machine_without_a_driver_never_imports_torch() -> None:
    run = subprocess.run([sys.executable, "-c", AUTO], capture_output=True, text=True, timeout=60)
    assert run.returncode == 0, run.stderr
    assert run.stdout.strip() == "[]"
