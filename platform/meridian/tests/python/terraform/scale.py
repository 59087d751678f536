"""How long a large environment takes: `scale.py --teams 50 --namespaces 10 --topics 10`.

One region; one environment of so many teams, each with so many namespaces of so many topics: applied, planned again
(nothing may change), then destroyed.
"""
import argparse
import pathlib
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))

from harness import ROOT, Terraform, make_mirror
from region import Region

TEXT = """
module "all" {{
  source  = "{modules}/environment"
  name    = "large"
  regions = ["standalone"]
  teams = {{
    for team in range({teams}) : format("team-%03d", team) => {{
      admin_roles = [format("admin-%03d", team)]
      namespaces = {{
        for namespace in range({namespaces}) : format("ns-%03d", namespace) => {{
          policies = {{
            messageTTL = 3600
            retention  = {{ retentionTimeInMinutes = 60, retentionSizeInMB = 512 }}
          }}
          grants = {{ app = ["consume", "produce"] }}
          topics = {{ for topic in range({topics}) : format("topic-%03d", topic) => {{ policies = {{ maxProducers = 10 }} }} }}
        }}
      }}
    }}
  }}
}}
"""


def measure(region, folder, teams, namespaces, topics):
    """Seconds of apply, second plan and destroy."""
    text = TEXT.format(modules=ROOT / "terraform/modules", teams=teams, namespaces=namespaces, topics=topics)
    one = Terraform(pathlib.Path(folder) / "large", make_mirror(folder), region.web).write(text).init()
    took = []
    for work in (one.apply, one.plan_is_empty, one.destroy):
        begun = time.monotonic()
        work()
        took.append(time.monotonic() - begun)
    return took


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--teams", type=int, default=50)
    parser.add_argument("--namespaces", type=int, default=10)
    parser.add_argument("--topics", type=int, default=10)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="meridian-scale-") as folder:
        region = Region(pathlib.Path(folder) / "region").start()
        try:
            apply, plan, destroy = measure(region, folder, given.teams, given.namespaces, given.topics)
        finally:
            region.close()
    spaces = given.teams * given.namespaces
    print(f"{given.teams} teams, {spaces} namespaces, {spaces * given.topics} topics: "
          f"apply {apply:.1f} s, second plan {plan:.1f} s, destroy {destroy:.1f} s")


if __name__ == "__main__":
    main()
