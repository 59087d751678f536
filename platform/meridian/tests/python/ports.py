"""Ports for processes that need the same ones again after a restart.

They lie beside the range from which the kernel takes the ports of outgoing connections: while a process is away, no
connection of another one can have them.
"""
import pathlib
import random
import socket

RANGE = pathlib.Path("/proc/sys/net/ipv4/ip_local_port_range")
LOWEST, HIGHEST = 10_000, 65_535


def candidates():
    first, last = (map(int, RANGE.read_text().split()) if RANGE.is_file() else (32_768, 60_999))
    beside = [port for port in range(LOWEST, HIGHEST + 1) if not first <= port <= last]
    return random.sample(beside, len(beside))


def free_ports(count):
    """Ports that nobody listens on now. They are held until all are chosen, so that none comes twice."""
    held = []
    try:
        for port in candidates():
            if len(held) == count:
                break
            one = socket.socket()
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                one.bind(("127.0.0.1", port))
                one.listen()
                held.append(one)
            except OSError:
                one.close()
        assert len(held) == count, f"{count} ports beside {RANGE} are not free"
        return [one.getsockname()[1] for one in held]
    finally:
        for one in held:
            one.close()


def with_ports(settings, keys):
    """Settings with a free port for each key that asks for any (0)."""
    asked = [key for key in keys if settings.get(key) == 0]
    return {**settings, **dict(zip(asked, free_ports(len(asked))))}
