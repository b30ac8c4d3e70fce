"""The manifests of examples/cluster against the published schemas of their kinds.

The schemas are not part of this repository. ``CLUSTER_CRDS`` names a folder that holds the two files, by
their own names:

    batch.paddlepaddle.org_paddlejobs.yaml   PaddleFlow/paddle-operator, config/crd/bases
    batch.volcano.sh_jobs.yaml               volcano-sh/volcano, config/crd/volcano/bases
"""

import os
from pathlib import Path

import pytest
import virtual_machines
import yaml

KINDS = {
    "paddlejob.yaml": "batch.paddlepaddle.org_paddlejobs.yaml",
    "volcano.yaml": "batch.volcano.sh_jobs.yaml",
}
every = pytest.mark.parametrize("name", KINDS)


def manifest(name):
    return yaml.safe_load((virtual_machines.ROOT / "examples/cluster" / name).read_text())


def template(content):
    spec = content["spec"]
    return (spec["worker"] if "worker" in spec else spec["tasks"][0])["template"]["spec"]


def closed(schema):
    """As the API server reads it with strict field validation: fields that the schema lacks are refused."""
    if isinstance(schema, list):
        return [closed(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    closed_schema = {key: closed(value) for key, value in schema.items()}
    if isinstance(schema.get("properties"), dict) and "type" in schema:
        closed_schema.setdefault(
            "additionalProperties", bool(schema.get("x-kubernetes-preserve-unknown-fields"))
        )
    return closed_schema


def errors(name, content):
    jsonschema = pytest.importorskip("jsonschema", reason="jsonschema is not installed")
    folder = os.environ.get("CLUSTER_CRDS")
    if not folder:
        pytest.skip("CLUSTER_CRDS names no folder with the schemas of PaddleJob and Volcano's Job")
    definition = yaml.safe_load((Path(folder) / KINDS[name]).read_text())
    group, kind = definition["spec"]["group"], definition["spec"]["names"]["kind"]
    schemas = {
        f"{group}/{version['name']}": version["schema"]["openAPIV3Schema"]
        for version in definition["spec"]["versions"]
    }
    assert content["kind"] == kind and content["apiVersion"] in schemas
    validator = jsonschema.Draft202012Validator(closed(schemas[content["apiVersion"]]))
    return [f"{error.json_path}: {error.message}" for error in validator.iter_errors(content)]


@pytest.mark.sampled
@every
def test_the_manifest_has_its_schema(name):
    assert not errors(name, manifest(name))


@pytest.mark.sampled
@every
@pytest.mark.parametrize(
    "change, sentence",
    [
        (lambda pod: pod.update(hostNetworks=True), "'hostNetworks' was unexpected"),
        (lambda pod: pod.update(restartPolicy=1), "1 is not of type 'string'"),
        (lambda pod: pod["containers"][0].pop("name"), "'name' is a required property"),
        (
            lambda pod: pod["containers"][0]["resources"]["limits"].update(cpu="8 cores"),
            "'8 cores' does not match",
        ),
    ],
    ids=["unknown field", "wrong type", "missing field", "wrong quantity"],
)
def test_an_error_in_the_pod_is_found(name, change, sentence):
    content = manifest(name)
    change(template(content))
    (error,) = errors(name, content)
    assert sentence in error


@every
def test_a_pod_asks_for_the_devices_that_it_trains_on(name):
    (container,) = template(manifest(name))["containers"]
    resources = container["resources"]
    # launch.sh's NPROC_PER_NODE
    assert resources["requests"] == resources["limits"] == {"huawei.com/Ascend910": 8}
