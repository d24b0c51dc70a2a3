"""Checks a job's file by a schema that its scheduler brings; `manifests.sh` runs it.

python manifest_schemas.py sky JOB.yaml                  SkyPilot's schema of a task, from its package
python manifest_schemas.py kuberay DEFINITION JOB.yaml   KubeRay's definition of a RayJob
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import jsonschema
import yaml


def main() -> None:
    """Print what is wrong with a job's file; exit code 1 if anything is."""
    kind, *files = sys.argv[1:]
    *definitions, job = [yaml.safe_load(Path(file).read_text(encoding="utf-8")) for file in files]
    if kind == "sky":
        from sky.utils import schemas

        schema = schemas.get_task_schema()
    else:
        schema = schema_of(definitions[0])
    errors = list(jsonschema.Draft7Validator(schema).iter_errors(job))
    for error in errors:
        print(f"{'.'.join(map(str, error.path))}: {error.message[:200]}")
    sys.exit(bool(errors))


def schema_of(definition: dict[str, Any]) -> Any:
    """The schema of a custom resource's version v1, in which a misspelt key is an error."""
    versions = {version["name"]: version["schema"]["openAPIV3Schema"] for version in definition["spec"]["versions"]}
    schema = closed(versions["v1"])
    # Kubernetes' own, which the definition leaves open.
    schema["properties"]["metadata"] = {"type": "object"}
    return schema


def closed(schema: Any) -> Any:
    """A schema whose objects allow no other keys than those that it names."""
    if isinstance(schema, list):
        return [closed(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    if schema.get("x-kubernetes-int-or-string"):
        return {"type": ["integer", "string"]}
    parts = {key: closed(part) for key, part in schema.items()}
    is_open = schema.get("x-kubernetes-preserve-unknown-fields") or "additionalProperties" in schema
    if "properties" in schema and not is_open:
        parts["additionalProperties"] = False
    return parts


if __name__ == "__main__":
    main()
