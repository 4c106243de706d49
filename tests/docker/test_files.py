"""The files in docker/ name only what is there: metrics, settings, routes, paths and pinned versions."""

import json
import re
import tomllib
import types
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from prometheus_client.parser import text_string_to_metric_families

from noisegate.service.app import create_app
from noisegate.service.settings import Settings, load_settings
from tests.service.fakes import FakeEngine

ROOT = Path(__file__).resolve().parents[2]
DOCKER = ROOT / "docker"
DASHBOARD = json.loads((DOCKER / "grafana" / "dashboards" / "noisegate.json").read_text(encoding="utf-8"))
COMPOSE = yaml.safe_load((DOCKER / "compose.yaml").read_text(encoding="utf-8"))
JOBS = yaml.safe_load((DOCKER / "compose.jobs.yaml").read_text(encoding="utf-8"))["services"]["noisegate"][
    "environment"
]
MANIFESTS = list(yaml.safe_load_all((DOCKER / "kubernetes.yaml").read_text(encoding="utf-8")))
DOCKERFILES = {kind: (DOCKER / f"Dockerfile.{kind}").read_text(encoding="utf-8") for kind in ("cpu", "gpu")}
DIGEST = r"(@sha256:[0-9a-f]{64})?"  # after a tag
QUERIES = [
    (panel["title"], target["expr"], target["legendFormat"])
    for panel in DASHBOARD["panels"]
    for target in panel.get("targets", ())
]


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """Every series that a service with jobs exports, with its labels: asked of its own registry."""
    folder = tmp_path_factory.mktemp("jobs")
    settings = load_settings(None, decode_workers=0, jobs_folder=folder, roots=[folder])
    found: dict[str, set[str]] = {}
    metrics = create_app(settings).state.service.metrics
    for metric, labels in (
        (metrics.requests, ("/v1/score", "200")),
        (metrics.seconds, ("/v1/score",)),
        (metrics.errors, ("busy",)),
        (metrics.items, ("ok",)),
        (metrics.batch_size, ("images",)),
        (metrics.wait, ("images",)),
        (metrics.encode, ("images",)),
    ):
        metric.labels(*labels)
    for family in text_string_to_metric_families(metrics.text().decode()):
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


@pytest.mark.parametrize(("title", "query", "legend"), QUERIES)
def test_every_query_of_the_dashboard_asks_for_what_is_exported(
    title: str, query: str, legend: str, exported: dict[str, set[str]]
) -> None:
    asked = re.findall(r"\bnoisegate_\w+", query)
    assert asked, title
    assert set(asked) <= set(exported)
    labels = set.intersection(*(exported[name] for name in asked))
    grouped = {word.strip() for group in re.findall(r"by \(([^)]*)\)", query) for word in group.split(",")}
    chosen = set(re.findall(r"[{,]\s*(\w+)=", query))
    assert grouped | chosen | set(re.findall(r"{{(\w+)}}", legend)) <= labels | {"le"}


def test_every_metric_is_on_the_dashboard(exported: dict[str, set[str]]) -> None:
    def family(name: str) -> str:
        return re.sub(r"_(total|bucket|sum|count|created)$", "", name)

    asked = {family(name) for _, query, _ in QUERIES for name in re.findall(r"\bnoisegate_\w+", query)}
    assert asked == {family(name) for name in exported}


def test_grafana_finds_its_source_and_its_dashboard() -> None:
    provisioning = DOCKER / "grafana" / "provisioning"
    source = yaml.safe_load((provisioning / "datasources" / "prometheus.yaml").read_text(encoding="utf-8"))
    [datasource] = source["datasources"]
    used = {target["datasource"]["uid"] for panel in DASHBOARD["panels"] for target in panel.get("targets", ())}
    assert used == {datasource["uid"]}
    assert datasource["url"] == "http://prometheus:9090"
    provider = yaml.safe_load((provisioning / "dashboards" / "noisegate.yaml").read_text(encoding="utf-8"))
    folder = provider["providers"][0]["options"]["path"]
    assert f"./grafana/dashboards:{folder}:ro" in COMPOSE["services"]["grafana"]["volumes"]
    home = COMPOSE["services"]["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert home == f"{folder}/noisegate.json"


def test_panels_do_not_overlap() -> None:
    taken: dict[tuple[int, int], str] = {}
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        for cell in (
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        ):
            assert cell not in taken, f"{panel['title']} lies over {taken.get(cell)}"
            taken[cell] = panel["title"]


def test_what_compose_mounts_from_here_is_here() -> None:
    local = [
        volume.split(":")[0]
        for service in COMPOSE["services"].values()
        for volume in service["volumes"]
        if volume.startswith("./")
    ]
    assert len(local) == 3
    assert COMPOSE["services"]["grafana"]["secrets"] == list(COMPOSE["secrets"])
    assert all((DOCKER / path).exists() for path in local)
    named = {
        volume.split(":")[0] for s in COMPOSE["services"].values() for volume in s["volumes"] if volume[0] not in ".$"
    }
    assert named == set(COMPOSE["volumes"])
    build = COMPOSE["services"]["noisegate"]["build"]
    assert (DOCKER / build["context"] / build["dockerfile"]).is_file()


def test_prometheus_asks_the_service_where_it_listens() -> None:
    [job] = yaml.safe_load((DOCKER / "prometheus.yaml").read_text(encoding="utf-8"))["scrape_configs"]
    assert job["static_configs"] == [{"targets": [f"noisegate:{Settings.model_fields['port'].default}"]}]
    assert job["metrics_path"] in _routes()


def test_nothing_is_published_beyond_this_machine() -> None:
    ports = [port for service in COMPOSE["services"].values() for port in service["ports"]]
    assert len(ports) == 3
    assert all(port.startswith("127.0.0.1:") for port in ports)


def test_no_open_server_has_jobs() -> None:
    [deployment] = [m for m in MANIFESTS if m["kind"] == "Deployment"]
    pod = {entry["name"] for entry in deployment["spec"]["template"]["spec"]["containers"][0]["env"]}
    plain = COMPOSE["services"]["noisegate"]["environment"]
    assert "NOISEGATE_JOBS_FOLDER" not in plain
    assert JOBS["NOISEGATE_ALLOW_OPEN"] == "false"
    assert JOBS["NOISEGATE_API_KEYS"].startswith("${NOISEGATE_API_KEYS:?")
    assert "NOISEGATE_API_KEYS" in pod
    assert "NOISEGATE_ALLOW_OPEN" not in pod


def test_prometheus_asks_for_a_host_that_the_service_knows() -> None:
    [job] = yaml.safe_load((DOCKER / "prometheus.yaml").read_text(encoding="utf-8"))["scrape_configs"]
    [target] = job["static_configs"][0]["targets"]
    assert COMPOSE["services"]["noisegate"]["environment"]["NOISEGATE_ALLOWED_HOSTS"] == target.split(":")[0]


def _environment() -> list[tuple[str, Any]]:
    """Every NOISEGATE_… variable that a file in docker/ sets."""
    [deployment] = [m for m in MANIFESTS if m["kind"] == "Deployment"]
    pod = deployment["spec"]["template"]["spec"]["containers"][0]
    found = [("compose.yaml", name) for name in COMPOSE["services"]["noisegate"]["environment"]]
    found += [("compose.jobs.yaml", name) for name in JOBS]
    found += [("kubernetes.yaml", entry["name"]) for entry in pod["env"]]
    found += [(kind, name) for kind, text in DOCKERFILES.items() for name in re.findall(r"\b(NOISEGATE_\w+)=", text)]
    return found


def test_every_variable_is_a_setting() -> None:
    names = _environment()
    assert len(names) >= 12
    for where, name in names:
        assert name.removeprefix("NOISEGATE_").lower() in Settings.model_fields, (where, name)


def test_jobs_have_folders_of_the_image_to_read_from() -> None:
    [deployment] = [m for m in MANIFESTS if m["kind"] == "Deployment"]
    given = {
        entry["name"]: entry.get("value") for entry in deployment["spec"]["template"]["spec"]["containers"][0]["env"]
    }
    for environment in (JOBS, given):
        for name in ("NOISEGATE_JOBS_FOLDER", "NOISEGATE_ROOTS"):
            assert all(
                re.search(rf"install --directory .*{environment[name]}\b", text) for text in DOCKERFILES.values()
            )


def _routes() -> set[str]:
    return set(create_app(load_settings(None), engine=FakeEngine()).openapi()["paths"])


def test_probes_and_health_checks_ask_for_routes_that_exist() -> None:
    [deployment] = [m for m in MANIFESTS if m["kind"] == "Deployment"]
    pod = deployment["spec"]["template"]["spec"]["containers"][0]
    probed = {name: pod[name]["httpGet"]["path"] for name in ("startupProbe", "readinessProbe", "livenessProbe")}
    assert probed == {"startupProbe": "/readyz", "readinessProbe": "/readyz", "livenessProbe": "/healthz"}
    assert set(probed.values()) <= _routes()
    for text in DOCKERFILES.values():
        [path] = re.findall(r"HEALTHCHECK[^}]*}(/\w+)", text)
        assert path == "/healthz"
    assert pod["ports"][0]["containerPort"] == Settings.model_fields["port"].default


@pytest.mark.parametrize("kind", DOCKERFILES)
def test_images_are_pinned_and_do_not_run_as_root(kind: str) -> None:
    text = DOCKERFILES[kind]
    [base] = re.findall(r"^ARG BASE=(\S+)", text, re.MULTILINE)
    assert re.fullmatch(rf"[\w/.-]+:[\w.-]*\d[\w.-]*{DIGEST}", base), "a tag with a version"
    assert "latest" not in text
    users = re.findall(r"^USER (\S+)", text, re.MULTILINE)
    assert users == ["10001"]
    assert text.index("USER 10001") < text.index("ENTRYPOINT")
    installs = re.findall(r"pip install [^&\n]*", text)
    assert installs
    pinned = ("--require-hashes", "--constraint constraints.txt", "--no-index")
    assert all(any(way in line for way in pinned) for line in installs)
    assert "EXTRA_INDEX" not in text
    others = [service["image"] for name, service in COMPOSE["services"].items() if name != "noisegate"]
    assert all(re.search(rf":v?\d+\.\d+\.\d+{DIGEST}$", image) for image in others)


def test_the_two_images_differ_only_where_a_gpu_asks_for_it() -> None:
    cpu, gpu = (
        {line.strip() for line in text.splitlines() if line.strip()[:1] != "#"} for text in DOCKERFILES.values()
    )
    assert len(cpu & gpu) > 35
    for line in cpu ^ gpu:
        assert re.search(
            r"BASE|PYTHON=|TORCH_LINKS|PIP_|NVIDIA|faiss|docker/|COPY pyproject|uninstall|pip check", line
        ), line


def test_gpu_pins_fit_the_extra() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    [wanted] = map(Requirement, project["optional-dependencies"]["gpu"])
    lines = (DOCKER / "constraints-gpu.txt").read_text(encoding="utf-8").splitlines()
    pins = dict(line.split("==") for line in lines if line and line[0] != "#")
    assert wanted.specifier.contains(pins[wanted.name])
    shared = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    assert f"faiss-cpu=={pins['faiss-gpu']}\n" in shared, "both images search with one release of faiss"
    assert not set(pins) & {line.split("==")[0] for line in shared.splitlines()}


LOCKS = ("requirements.lock", "requirements-source.lock", "docker/requirements.lock", "docker/torch-cpu.lock")


def read_pins() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    return dict(line.split("==") for line in lines if line[0] != "#")


def read_lock(name: str) -> dict[str, tuple[str, set[str]]]:
    """Version and digests by package, as pip would read them."""
    locked: dict[str, tuple[str, set[str]]] = {}
    for entry in (ROOT / name).read_text(encoding="utf-8").replace("\\\n", "").splitlines():
        if not entry.startswith("#"):
            requirement, *digests = entry.split()
            package, version = requirement.split("==")
            assert package not in locked
            assert digests, package
            assert all(re.fullmatch(r"--hash=sha256:[0-9a-f]{64}", digest) for digest in digests)
            locked[package] = version, set(digests)
    return locked


def test_the_locks_of_make_have_the_packages_and_versions_of_the_constraints() -> None:
    wheels, sources = (read_lock(name) for name in ("requirements.lock", "requirements-source.lock"))
    assert not wheels.keys() & sources.keys()
    assert {name: version for name, (version, _) in (wheels | sources).items()} == read_pins(), "run make lock"


def test_the_locks_of_the_images_are_parts_of_that_of_make() -> None:
    everything = read_lock("requirements.lock")
    image, torch = (read_lock(f"docker/{name}.lock") for name in ("requirements", "torch-cpu"))
    assert image.items() <= everything.items(), "run make lock"
    version, digests = torch.pop("torch")
    assert not torch
    assert version == f"{everything['torch'][0]}+cpu"
    assert digests < everything["torch"][1]


def test_the_constraints_have_all_that_any_extra_needs() -> None:
    loader = SourceFileLoader("lock", str(ROOT / ".ci" / "lock"))
    lock = types.ModuleType("lock", "made of a file without the ending .py")
    lock.__file__ = loader.path
    loader.exec_module(lock)
    needed = lock.needed_by("noisegate", ("dev",), set()) - {"noisegate"}
    assert {"torch", "aiohttp", "flask", "jsonpath-rw"} <= needed, "also what extras of packages need"
    assert needed <= {canonicalize_name(name) for name in read_pins()}


def test_make_installs_by_digest() -> None:
    """torch's own needs (NVIDIA's libraries, in versions that its wheel names) are the only exception."""
    rule = (ROOT / "Makefile").read_text(encoding="utf-8").split("$(STAMP):")[1].split("\n\n")[0]
    installs = re.findall(r"\$\(INSTALL\) (.*)", rule)
    locks = ["docker/torch-cpu.lock", *LOCKS[:2]]  # the CPU build first: pip prefers the package index's to it
    assert set(locks) < set(rule.splitlines()[0].split()), "a changed lock installs anew"
    by_digest = [line for line in installs if "--require-hashes" in line]
    assert [re.findall(r"--requirement (\S+)", line) for line in by_digest] == [[lock] for lock in locks]
    rest = [line for line in installs if line not in by_digest]
    assert rest == ["--constraint constraints.txt torch", "--no-deps --no-build-isolation --editable ."]


def test_the_cluster_lets_only_named_clients_in() -> None:
    [policy] = [m for m in MANIFESTS if m["kind"] == "NetworkPolicy"]
    [deployment] = [m for m in MANIFESTS if m["kind"] == "Deployment"]
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert policy["spec"]["podSelector"]["matchLabels"].items() <= labels.items()
    assert set(policy["spec"]["policyTypes"]) == {"Ingress", "Egress"}
    assert all(rule["from"] for rule in policy["spec"]["ingress"])


def test_grafana_has_no_password_that_everybody_knows() -> None:
    grafana = COMPOSE["services"]["grafana"]["environment"]
    assert grafana["GF_SECURITY_ADMIN_PASSWORD__FILE"] == f"/run/secrets/{next(iter(COMPOSE['secrets']))}"
    ignored = (ROOT / ".gitignore").read_text(encoding="utf-8").splitlines()
    assert "docker/grafana-password" in ignored
