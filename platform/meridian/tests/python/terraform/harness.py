"""Terraform as a person would use it: the provider in a local mirror, configurations in folders of their own."""
import json
import os
import pathlib
import shutil
import subprocess

ROOT = pathlib.Path(__file__).parents[5]
PROVIDER = pathlib.Path(os.environ.get("MERIDIAN_TERRAFORM_PROVIDER",
                                       ROOT / "target/debug/terraform-provider-meridian"))
BINARY = os.environ.get("MERIDIAN_BINARY", str(ROOT / "target/debug/meridian"))
TERRAFORM = shutil.which("terraform")
SOURCE = "terraform.local/meridian/meridian"
VERSION = "0.1.0"

HEAD = f"""
terraform {{
  required_providers {{
    meridian = {{ source = "{SOURCE}" }}
  }}
}}
"""


def make_mirror(folder):
    """A mirror that holds the provider, and the settings that make terraform use nothing else."""
    folder = pathlib.Path(folder)
    place = folder / "mirror" / SOURCE / VERSION / "linux_amd64"
    place.mkdir(parents=True, exist_ok=True)
    target = place / f"terraform-provider-meridian_v{VERSION}"
    if not target.exists():
        os.symlink(PROVIDER.resolve(), target)
    settings = folder / "terraform.rc"
    settings.write_text(f'disable_checkpoint = true\nprovider_installation {{\n  filesystem_mirror {{\n'
                        f'    path = "{folder / "mirror"}"\n  }}\n}}\n')
    return settings


class Failed(AssertionError):
    """Terraform ended with an error."""


class Terraform:
    """One configuration in a folder."""

    def __init__(self, folder, settings, url=None, **environment):
        self.folder = pathlib.Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.environment = {**os.environ, "TF_CLI_CONFIG_FILE": str(settings), "TF_IN_AUTOMATION": "1",
                            "CHECKPOINT_DISABLE": "1", "TF_INPUT": "0", **environment}
        if url:
            self.environment["MERIDIAN_URL"] = url

    def write(self, text, head=HEAD):
        (self.folder / "main.tf").write_text(head + text)
        return self

    def copy(self, source):
        shutil.copytree(source, self.folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns(".terraform*", "*.tfstate*"))
        return self

    def run(self, *arguments, good=(0,)):
        done = subprocess.run([TERRAFORM, *arguments], cwd=self.folder, env=self.environment, stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=900)
        if good is not None and done.returncode not in good:
            raise Failed(f"terraform {' '.join(arguments)} ended with {done.returncode}:\n{done.stdout}")
        return done

    def init(self):
        self.run("init", "-no-color")
        return self

    def apply(self, *more):
        return self.run("apply", "-no-color", "-auto-approve", *more).stdout

    def refused(self, *arguments):
        """The diagnostics of a run that has to fail."""
        done = self.run(*arguments, "-no-color", good=(1,))
        return " ".join(done.stdout.replace("│", " ").split())

    def destroy(self, *more):
        return self.run("destroy", "-no-color", "-auto-approve", *more).stdout

    def plan_is_empty(self, *more):
        done = self.run("plan", "-no-color", "-detailed-exitcode", *more, good=(0, 2))
        assert done.returncode == 0, f"the plan is not empty:\n{done.stdout}"

    def changes(self, *more):
        """What a plan would do: actions by address, and the values before and after."""
        file = str(self.folder / "tfplan")
        self.run("plan", "-no-color", "-out", file, *more)
        shown = json.loads(self.run("show", "-json", file).stdout)
        return {change["address"]: change["change"] for change in shown.get("resource_changes", [])
                if change["change"]["actions"] != ["no-op"]}

    def state(self):
        shown = json.loads(self.run("show", "-json").stdout)
        resources = shown.get("values", {}).get("root_module", {}).get("resources", [])
        return {one["address"]: one["values"] for one in resources}

    def schema(self):
        shown = json.loads(self.run("providers", "schema", "-json").stdout)
        return shown["provider_schemas"][SOURCE]
