"""One direction of a wide-area link as a process of its own: TCP connections that region A opens to region B.

Each way it delays by a one-way latency, limits bytes per second over all connections together, counts what it carried, and
can be cut: by reset (connections are torn and new ones too) or silently (nothing moves, nobody is told; what was under way
arrives after the healing, as TCP would resend it). It reorders nothing.

    wan_proxy.py '{"services": {"binary": [LISTEN_PORT, "127.0.0.1", TARGET_PORT], …}}'

Commands are JSON lines on standard input, each answered by one JSON line; the end of input ends the process.
"""
import asyncio
import collections
import json
import socket
import struct
import sys

PIECE_BYTES = 16 * 1024
# What a link holds beyond what is on its way: the buffer of a router.
BUFFER_BYTES = 256 * 1024
UNLIMITED_BYTES = 64 * 1024 * 1024
TEAR = struct.pack("ii", 1, 0)
# What follows the last bytes of a side: it sends no more, or it is gone.
FINISHED, GONE = b"", bytearray()


class Way:
    """One way of the link: a queue of (due time, end, piece) in the order in which the pieces came."""

    def __init__(self, loop):
        self.loop = loop
        self.latency_s = 0.0
        self.bytes_per_s = 0
        self.blocked = False
        self.queue = collections.deque()
        self.queued_bytes = 0
        self.free_at = 0.0
        self.last_due = 0.0
        self.timer = None
        self.sources = set()
        self.full = False

    def limit_bytes(self):
        if self.bytes_per_s == 0:
            return UNLIMITED_BYTES
        return int(self.bytes_per_s * self.latency_s) + BUFFER_BYTES

    def carry(self, end, data):
        """Takes bytes (or FINISHED, GONE) that came in at one side; they leave at `end` when they are due."""
        now = self.loop.time()
        if not self.bytes_per_s:
            self.put(end, data, now + self.latency_s, now)
            return
        pieces = [data[at:at + PIECE_BYTES] for at in range(0, len(data), PIECE_BYTES)] or [data]
        for piece in pieces:
            self.free_at = max(now, self.free_at) + len(piece) / self.bytes_per_s
            self.put(end, piece, self.free_at + self.latency_s, now)

    def put(self, end, piece, due, now):
        due = max(due, self.last_due)
        self.last_due = due
        if not self.queue and not self.blocked and due <= now:
            end.leave(piece)
            return
        self.queue.append((due, end, piece))
        self.queued_bytes += len(piece)
        if not self.full and self.queued_bytes > self.limit_bytes():
            self.full = True
            self.refresh()
        self.arm()

    def arm(self):
        if self.timer is None and self.queue and not self.blocked:
            self.timer = self.loop.call_at(self.queue[0][0], self.move)

    def move(self):
        self.timer = None
        # A timer may come a little early; a piece that is due within it goes along.
        now = self.loop.time() + 0.0002
        while self.queue and self.queue[0][0] <= now and not self.blocked:
            _, end, piece = self.queue.popleft()
            self.queued_bytes -= len(piece)
            end.leave(piece)
        if self.full and self.queued_bytes <= self.limit_bytes():
            self.full = False
            self.refresh()
        self.arm()

    def refresh(self):
        for source in self.sources:
            source.refresh()

    def block(self, blocked):
        self.blocked = blocked
        self.refresh()
        self.arm()

    def forget(self, end):
        self.queue = collections.deque(item for item in self.queue if item[1] is not end)
        self.queued_bytes = sum(len(item[2]) for item in self.queue)
        if self.full and self.queued_bytes <= self.limit_bytes():
            self.full = False
            self.refresh()


class End(asyncio.Protocol):
    """One socket of a carried connection. What it reads goes by `way` to `other`."""

    def __init__(self, way, count):
        self.way, self.count = way, count
        self.other = None
        self.transport = None
        self.other_full = False
        self.paused = False
        self.finished_reading = self.finished_writing = False
        self.waiting = []
        self.made = asyncio.Event()

    def connection_made(self, transport):
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.transport = transport
        self.way.sources.add(self)
        for piece in self.waiting:
            self.leave(piece)
        self.waiting.clear()
        self.made.set()
        self.refresh()

    def data_received(self, data):
        self.count(len(data))
        self.way.carry(self.other, data)

    def eof_received(self):
        self.way.carry(self.other, FINISHED)
        self.finished_reading = True
        # Kept open while the other side may still have something to say.
        return not self.finished_writing

    def connection_lost(self, _error):
        self.way.sources.discard(self)
        self.way.carry(self.other, GONE)

    def pause_writing(self):
        self.other.other_full = True
        self.other.refresh()

    def resume_writing(self):
        self.other.other_full = False
        self.other.refresh()

    def refresh(self):
        pause = self.way.full or self.way.blocked or self.other_full
        if self.transport is None or self.transport.is_closing() or pause == self.paused:
            return
        self.paused = pause
        if pause:
            self.transport.pause_reading()
        else:
            self.transport.resume_reading()

    def leave(self, piece):
        if self.transport is None:
            self.waiting.append(piece)
        elif not self.transport.is_closing():
            if piece is GONE:
                self.transport.close()
            elif piece:
                self.transport.write(piece)
            elif self.finished_reading:
                self.transport.close()
            else:
                self.finished_writing = True
                try:
                    self.transport.write_eof()
                except OSError:  # the peer has torn it down
                    self.transport.abort()

    def tear(self):
        if self.transport is not None and not self.transport.is_closing():
            self.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, TEAR)
            self.transport.abort()


class Link:
    """Both ways, all connections, and what a test asks of them."""

    def __init__(self, loop, services):
        self.loop = loop
        self.services = services
        self.ways = {"forward": Way(loop), "backward": Way(loop)}
        self.bytes = {name: {"forward": 0, "backward": 0} for name in services}
        self.pairs = set()
        self.torn = False
        self.connections = 0
        self.healed = asyncio.Event()
        self.healed.set()

    def counter(self, service, way):
        counts = self.bytes[service]

        def count(length):
            counts[way] += length

        return count

    async def listen(self):
        for service, (port, _, _) in self.services.items():
            await self.loop.create_server(lambda service=service: self.near(service), "127.0.0.1", port, backlog=512)

    def near(self, service):
        near = End(self.ways["forward"], self.counter(service, "forward"))
        far = End(self.ways["backward"], self.counter(service, "backward"))
        near.other, far.other = far, near
        self.pairs.add((near, far))
        self.connections += 1
        self.loop.create_task(self.reach(service, near, far))
        return near

    async def reach(self, service, near, far):
        """Opens the far side of a connection that was accepted; while the link is silent, that waits."""
        await near.made.wait()
        await self.healed.wait()
        _, host, port = self.services[service]
        if self.torn:
            near.tear()
            self.pairs.discard((near, far))
            return
        try:
            await self.loop.create_connection(lambda: far, host, port)
        except OSError:
            near.tear()
        if self.torn:
            near.tear()
            far.tear()
        while near in self.ways["forward"].sources or far in self.ways["backward"].sources:
            await asyncio.sleep(0.5)
        self.pairs.discard((near, far))

    def cut(self, how, ways):
        if how == "reset":
            self.torn = True
            for near, far in list(self.pairs):
                near.tear()
                far.tear()
                self.ways["forward"].forget(far)
                self.ways["backward"].forget(near)
            return
        for way in ways:
            self.ways[way].block(True)
        if len(ways) == 2:
            self.healed.clear()

    def heal(self):
        self.torn = False
        for way in self.ways.values():
            way.block(False)
        self.healed.set()

    def obey(self, command):
        match command["do"]:
            case "shape":
                for name in command["ways"]:
                    way = self.ways[name]
                    way.latency_s = command.get("latency_ms", way.latency_s * 1000) / 1000
                    way.bytes_per_s = command.get("bytes_per_s", way.bytes_per_s)
            case "cut":
                self.cut(command["how"], command["ways"])
            case "heal":
                self.heal()
            case "count":
                return {"bytes": self.bytes, "connections": self.connections, "open": len(self.pairs)}
        return {}


async def main():
    loop = asyncio.get_running_loop()
    link = Link(loop, json.loads(sys.argv[1])["services"])
    await link.listen()
    print(json.dumps({"ready": True}), flush=True)
    commands = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(commands), sys.stdin)
    while line := await commands.readline():
        print(json.dumps(link.obey(json.loads(line))), flush=True)


if __name__ == "__main__":
    asyncio.run(main())
