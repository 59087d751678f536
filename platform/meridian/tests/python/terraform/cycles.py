"""Creates, plans and destroys the two-region environment again and again: `cycles.py --rounds 50`.

Two regions on free ports; each round applies the module's example, plans (nothing may change), sends a message through
one region and receives it in the other in the first round, destroys, and looks that both regions are as before.
"""
import argparse
import json
import pathlib
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))

import pulsar

from harness import ROOT, Terraform, make_mirror
from region import Region, wait_until

EXAMPLE = ROOT / "terraform/examples/two-regions"
# A test machine may have little room left.
SETTINGS = {"diskUsageThreshold": 0.99, "diskUsageLwmThreshold": 0.98}


class Pair:
    """Two regions, and the example's configuration for them."""

    def __init__(self, folder):
        folder = pathlib.Path(folder)
        self.regions = {name: Region(folder / name, clusterName=name, **SETTINGS).start() for name in ("west", "east")}
        top = folder / "terraform"
        Terraform(top / "modules", "unused").copy(ROOT / "terraform/modules")
        self.terraform = Terraform(top / "examples/two-regions", make_mirror(folder)).copy(EXAMPLE)
        for name, region in self.regions.items():
            self.terraform.environment[f"TF_VAR_{name}"] = json.dumps({
                "admin_url": region.web, "broker_url": region.url,
                "link_url": f"http://localhost:{region.ready['region_link_port']}"})
        self.terraform.init()

    def left_behind(self):
        """What a region has beyond what it began with."""
        left = {}
        for name, region in self.regions.items():
            left[name] = {
                "tenants": set(region.get("/admin/v2/tenants")) - {"public", "pulsar"},
                "clusters": set(region.get("/admin/v2/clusters")) - {name},
                "owners": set(region.get("/admin/v2/meridian/applied")),
            }
        return {name: found for name, found in left.items() if any(found.values())}

    def cross(self, topic="persistent://orders/live/placed"):
        """A message goes in at one region and comes out at the other."""
        east = self.regions["east"]
        wait_until(lambda: east.admin("GET", f"/admin/v2/{topic.replace('://', '/')}/partitions").status_code == 200,
                   30, "the topic in east")
        receiver, sender = east.client(), self.regions["west"].client()
        try:
            consumer = receiver.subscribe(topic, "cross", initial_position=pulsar.InitialPosition.Earliest)
            sender.create_producer(topic).send(b"from west")
            return consumer.receive(30_000).data().decode()
        finally:
            receiver.close()
            sender.close()

    def close(self):
        for region in self.regions.values():
            region.close()


def rounds(pair, count, say=print):
    """So many rounds; the seconds of each part."""
    took = {"apply": [], "plan": [], "destroy": []}
    for number in range(count):
        for step, work in (("apply", pair.terraform.apply), ("plan", pair.terraform.plan_is_empty)):
            begun = time.monotonic()
            work()
            took[step].append(time.monotonic() - begun)
        if number == 0:
            assert pair.cross() == "from west"
        begun = time.monotonic()
        pair.terraform.destroy()
        took["destroy"].append(time.monotonic() - begun)
        wait_until(lambda: not pair.left_behind(), 30, f"nothing left behind: {pair.left_behind()}")
        say(f"round {number + 1}: apply {took['apply'][-1]:.1f} s, plan {took['plan'][-1]:.1f} s, "
            f"destroy {took['destroy'][-1]:.1f} s")
    return took


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=50)
    count = parser.parse_args().rounds
    with tempfile.TemporaryDirectory(prefix="meridian-cycles-") as folder:
        pair = Pair(folder)
        try:
            took = rounds(pair, count)
        finally:
            pair.close()
    print(f"{count} rounds, 0 errors, 0 plans that were not empty, nothing left behind")
    for step, seconds in took.items():
        print(f"  {step}: median {sorted(seconds)[len(seconds) // 2]:.1f} s, longest {max(seconds):.1f} s")


if __name__ == "__main__":
    main()
