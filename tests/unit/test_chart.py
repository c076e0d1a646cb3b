"""deploy/chart: what it puts into a cluster, without a cluster; and with Helm, where there is one, the same."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.chart import CHART, merged, rendered, values
from tests.support.outbox_command import outbox

ROOT = Path(__file__).resolve().parents[2]
GRACE_S = 30
"""The default of --shutdown-timeout: what stops a relay has to wait for longer."""
EVERYTHING: dict[str, Any] = {
    "image": {"tag": "0.1.0@sha256:12ab", "pullPolicy": "Always"},
    "pullSecrets": [{"name": "registry"}],
    "config": 'log-format = "json"\n\n[relay.run]\npage = 1000\n',
    "relay": {"replicas": 3, "args": ["--kafka-config", "compression.type=lz4"], "secret": "relay-login"},
    "checker": {"args": ["--allow-callback", "shop.example.com"]},
    "volumes": [{"name": "tls", "secret": {"secretName": "kafka-ca"}}],
    "volumeMounts": [{"name": "tls", "mountPath": "/tls", "readOnly": True}],
    "podLabels": {"team": "orders"},
    "nodeSelector": {"kubernetes.io/os": "linux"},
    "tolerations": [{"key": "spot", "operator": "Exists"}],
    "podMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
    "prometheusRule": {"enabled": True},
    "networkPolicy": {
        "from": [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}]
    },
}
LEAST: dict[str, Any] = {
    "checker": {"enabled": False},
    "migrations": {"enabled": False},
    "config": "",
    "networkPolicy": {"enabled": False},
}
VARIANTS = {"as it is": {}, "everything": EVERYTHING, "least": LEAST}
helm = pytest.mark.skipif(shutil.which("helm") is None, reason="there is no helm")


@pytest.fixture(params=VARIANTS)
def objects(request: pytest.FixtureRequest) -> list[dict[str, Any]]:
    return rendered(VARIANTS[request.param])


def of_kind(objects: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [each for each in objects if each["kind"] == kind]


def pods(objects: list[dict[str, Any]]) -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    """Yield the component, the pod and its only container."""
    for each in objects:
        if "template" in each.get("spec", {}):
            template = each["spec"]["template"]
            (container,) = template["spec"]["containers"]
            yield template["metadata"]["labels"]["app.kubernetes.io/component"], template["spec"], container


def shown(*command: str) -> dict[str, str]:
    """Return the options that a command takes."""
    ran = outbox("config", "show", *command, "--json")
    assert ran.code == 0, ran.err
    return {row["option"]: row["value"] for row in json.loads(ran.out)}


def test_the_parts_are_those_that_values_ask_for() -> None:
    kinds = {name: sorted(each["kind"] for each in rendered(changes)) for name, changes in VARIANTS.items()}
    base = ["ConfigMap", "Deployment", "Deployment", "Job", "NetworkPolicy"] + ["PodDisruptionBudget"] * 2
    assert kinds["as it is"] == base
    assert kinds["everything"] == sorted([*base, "PodMonitor", "PrometheusRule"])
    assert kinds["least"] == ["ConfigMap", "Deployment", "PodDisruptionBudget"]


def test_every_command_exists_and_takes_its_options(objects: list[dict[str, Any]]) -> None:
    for _, _, container in pods(objects):
        args = container["args"]
        assert {arg for arg in args if arg.startswith("--")} <= shown(*args[:2]).keys()


def test_two_of_each_run_and_one_is_disrupted_at_a_time(objects: list[dict[str, Any]]) -> None:
    budgets = {each["metadata"]["name"]: each["spec"] for each in of_kind(objects, "PodDisruptionBudget")}
    deployments = of_kind(objects, "Deployment")
    assert budgets.keys() == {each["metadata"]["name"] for each in deployments}
    for each in deployments:
        assert each["spec"]["replicas"] >= 2
        assert each["spec"]["strategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}
        budget = budgets[each["metadata"]["name"]]
        assert budget == {"maxUnavailable": 1, "selector": each["spec"]["selector"]}


def test_nobody_but_the_node_reaches_the_port_of_liveness(objects: list[dict[str, Any]]) -> None:
    if not (policies := of_kind(objects, "NetworkPolicy")):
        return
    (policy,) = policies
    assert policy["spec"]["policyTypes"] == ["Ingress"]
    for each in of_kind(objects, "Deployment"):
        labels = each["spec"]["template"]["metadata"]["labels"]
        assert policy["spec"]["podSelector"]["matchLabels"].items() <= labels.items()
    (rule,) = policy["spec"]["ingress"]
    assert rule["from"], "an empty list lets everybody in"
    assert rule["ports"] == [{"protocol": "TCP", "port": "http"}]


def test_without_peers_nobody_reads_the_pages() -> None:
    (policy,) = of_kind(rendered({"networkPolicy": {"from": []}}), "NetworkPolicy")
    assert "ingress" not in policy["spec"]


def test_selectors_match_the_labels_of_their_own_pods_only(objects: list[dict[str, Any]]) -> None:
    labels = [each["spec"]["template"]["metadata"]["labels"] for each in of_kind(objects, "Deployment")]
    for each in of_kind(objects, "Deployment"):
        wanted = each["spec"]["selector"]["matchLabels"].items()
        assert [wanted <= found.items() for found in labels].count(True) == 1
        assert wanted <= each["spec"]["template"]["metadata"]["labels"].items()


def test_probes_ask_the_port_that_the_command_serves(objects: list[dict[str, Any]]) -> None:
    for component, _, container in pods(objects):
        if component == "migrations":
            continue
        ports = {each["name"]: each["containerPort"] for each in container["ports"]}
        args = container["args"]
        assert ports == {
            name: int(args[args.index(option) + 1].removeprefix("0.0.0.0:"))
            for name, option in (("http", "--http"), ("livez", "--livez"))
        }
        asked = {
            name: container[name]["httpGet"] for name in ("startupProbe", "livenessProbe", "readinessProbe")
        }
        assert [probe["port"] for probe in asked.values()] == ["livez", "livez", "http"]
        assert [probe["path"] for probe in asked.values()] == ["/livez", "/livez", "/readyz"]


def test_pods_have_no_rights_that_they_do_not_need(objects: list[dict[str, Any]]) -> None:
    user = re.search(r"^USER (\d+):(\d+)$", (ROOT / "Dockerfile").read_text(encoding="utf-8"), re.MULTILINE)
    assert user is not None, "a name is refused by Kubernetes where runAsNonRoot is set"
    for _, pod, container in pods(objects):
        assert pod["automountServiceAccountToken"] is False
        assert pod["securityContext"] == {
            "runAsNonRoot": True,
            "runAsUser": int(user[1]),
            "runAsGroup": int(user[2]),
            "seccompProfile": {"type": "RuntimeDefault"},
        }
        assert container["securityContext"] == {
            "readOnlyRootFilesystem": True,
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
        }
        assert {"cpu", "memory"} <= container["resources"]["requests"].keys()
        assert "memory" in container["resources"]["limits"]


def test_pods_have_time_to_settle(objects: list[dict[str, Any]]) -> None:
    assert all(pod.get("terminationGracePeriodSeconds", GRACE_S + 1) > GRACE_S for _, pod, _ in pods(objects))


def test_passwords_come_from_secrets_that_exist_and_from_nowhere_else(objects: list[dict[str, Any]]) -> None:
    assert not of_kind(objects, "Secret")
    named = {component: container["envFrom"] for component, _, container in pods(objects)}
    for component, sources in named.items():
        ((secret,),) = (each.values() for each in sources)
        assert secret["name"] in {f"outbox-{component}", "outbox-owner", "relay-login"}
    assert "OUTBOX_DSN" not in json.dumps([each for each in objects if each["kind"] != "PrometheusRule"])


def test_migrations_run_before_anything_else_of_the_release_is_there() -> None:
    (job,) = of_kind(rendered(), "Job")
    assert job["metadata"]["annotations"]["helm.sh/hook"] == "pre-install,pre-upgrade"
    assert job["spec"]["backoffLimit"] == 0
    assert job["spec"]["template"]["spec"]["restartPolicy"] == "Never"
    assert "-config" not in json.dumps(job), "its ConfigMap is created after the hook"


def test_the_file_of_options_is_read_by_the_pods_and_fits_the_commands(tmp_path: Path) -> None:
    for changes in VARIANTS.values():
        objects = rendered(changes)
        (config,) = of_kind(objects, "ConfigMap")
        file = tmp_path / "outbox.toml"
        file.write_text(config["data"]["outbox.toml"], encoding="utf-8")
        assert outbox("config", "check", OUTBOX_CONFIG=str(file)).code == 0
        for component, pod, container in pods(objects):
            if component == "migrations":
                continue
            (mount,) = (each for each in container["volumeMounts"] if each["name"] == "config")
            (volume,) = (each for each in pod["volumes"] if each["name"] == "config")
            assert volume["configMap"]["name"] == config["metadata"]["name"]
            assert {"name": "OUTBOX_CONFIG", "value": f"{mount['mountPath']}/outbox.toml"} in container["env"]


def test_changed_options_roll_the_pods() -> None:
    def marks(config: str) -> set[str]:
        return {
            each["spec"]["template"]["metadata"]["annotations"]["checksum/config"]
            for each in of_kind(rendered({"config": config}), "Deployment")
        }

    assert len(marks("a = 1")) == 1
    assert marks("a = 1") != marks("a = 2")


def test_values_reach_every_pod() -> None:
    objects = rendered(EVERYTHING)
    for component, pod, container in pods(objects):
        assert container["image"] == "registry.example.com/outbox-kafka:0.1.0@sha256:12ab"
        assert (
            container["args"][-1]
            == {
                "migrations": "upgrade",
                "relay": "compression.type=lz4",
                "checker": "shop.example.com",
            }[component]
        )
        assert EVERYTHING["volumes"][0] in pod["volumes"]
        assert EVERYTHING["volumeMounts"][0] in container["volumeMounts"]
        for name in ("nodeSelector", "tolerations"):
            assert pod[name] == EVERYTHING[name]
        assert pod["imagePullSecrets"] == EVERYTHING["pullSecrets"]
    assert len(list(pods(objects))) == 3


def test_rules_are_those_of_the_command_and_pods_are_scraped_where_they_serve() -> None:
    objects = rendered(EVERYTHING)
    (rule,) = of_kind(objects, "PrometheusRule")
    printed = outbox("metrics", "alerts").out
    assert (CHART / "alerts.yml").read_text(encoding="utf-8") == printed, (
        "write it again: outbox metrics alerts > deploy/chart/alerts.yml"
    )
    assert rule["spec"] == yaml.safe_load(printed)
    (monitor,) = of_kind(objects, "PodMonitor")
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    served = {container["ports"][0]["name"] for _, _, container in pods(objects) if "ports" in container}
    assert {endpoint["port"]} == served
    for each in of_kind(objects, "Deployment"):
        labels = each["spec"]["template"]["metadata"]["labels"]
        assert monitor["spec"]["selector"]["matchLabels"].items() <= labels.items()


def test_chart_and_software_have_one_version() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert chart["version"] == chart["appVersion"] == project["version"]


def test_the_schema_of_values_has_each_value_and_no_other() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
    found = schema["properties"]
    assert found.keys() - {"global"} == values().keys()
    for name, value in values().items():
        if found[name].get("additionalProperties") is False:
            assert found[name]["properties"].keys() == value.keys()
    assert found["relay"]["properties"]["replicas"]["minimum"] == 2
    assert schema["definitions"]["grace"]["minimum"] > GRACE_S


@helm
@pytest.mark.parametrize("name", VARIANTS)
def test_helm_accepts_the_chart_and_renders_the_same(name: str, tmp_path: Path) -> None:
    file = tmp_path / "values.yaml"
    file.write_text(yaml.safe_dump(VARIANTS[name]), encoding="utf-8")
    options = ["--values", str(file), "--kube-version", "1.30.0"]
    linted = subprocess.run(
        ["helm", "lint", "--strict", str(CHART), *options], capture_output=True, text=True, check=False
    )
    assert linted.returncode == 0, linted.stdout + linted.stderr
    ran = subprocess.run(
        ["helm", "template", "shop", str(CHART), *options], capture_output=True, text=True, check=True
    )

    def ordered(objects: list[dict[str, Any]]) -> list[str]:
        return sorted(json.dumps(each, sort_keys=True) for each in objects)

    by_helm = [each for each in yaml.safe_load_all(ran.stdout) if each is not None]
    assert ordered(by_helm) == ordered(rendered(VARIANTS[name]))


@helm
@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"relay": {"replicas": 1}}, "/relay/replicas"),
        ({"relay": {"replica": 3}}, "replica"),
        ({"checker": {"graceSeconds": 30}}, "/checker/graceSeconds"),
    ],
)
def test_helm_refuses_values_that_break_a_promise(
    changes: dict[str, Any], problem: str, tmp_path: Path
) -> None:
    file = tmp_path / "values.yaml"
    file.write_text(yaml.safe_dump(merged(values(), changes)), encoding="utf-8")
    ran = subprocess.run(
        ["helm", "template", "shop", str(CHART), "--values", str(file), "--kube-version", "1.30.0"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode != 0
    assert problem in ran.stderr
