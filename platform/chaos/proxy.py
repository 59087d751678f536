"""TCP proxies on loopback whose connections can be cut, held, or made deaf on one side."""
import asyncio
import threading

CHUNK_BYTES = 64 << 10
WAYS = ("reset", "silent", "mute")


class Loop:
    """The thread that all proxies of a run share."""

    def __init__(self):
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()

    def do(self, coroutine, seconds=20):
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(seconds)

    def close(self):
        async def end():
            tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

        self.do(end())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(10)
        self.loop.close()


class Proxy:
    """Listens at one address and passes on to another.

    `reset`: connections are closed, new ones at once. `silent`: nothing is passed on in either direction, what was sent
    arrives when it is healed. `mute`: only the answers are held.
    """

    def __init__(self, loop, listen, target):
        self.loop, self.listen, self.target = loop, listen, target
        self.writers, self.refusing = set(), False
        self.asks, self.answers = asyncio.Event(), asyncio.Event()
        self.asks.set()
        self.answers.set()
        loop.do(self.begin())

    async def begin(self):
        self.server = await asyncio.start_server(self.accept, *self.listen)

    async def accept(self, reader, writer):
        if self.refusing:
            writer.transport.abort()
            return
        self.writers.add(writer)
        far = None
        try:
            far_reader, far = await asyncio.open_connection(*self.target)
            self.writers.add(far)
            await asyncio.gather(self.pass_on(reader, far, self.asks), self.pass_on(far_reader, writer, self.answers))
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            for one in (writer, far):
                if one:
                    self.writers.discard(one)
                    one.transport.abort()

    async def pass_on(self, reader, writer, gate):
        while data := await reader.read(CHUNK_BYTES):
            await gate.wait()
            writer.write(data)
            await writer.drain()
        await gate.wait()
        if writer.can_write_eof():
            writer.write_eof()

    def cut(self, way):
        async def change():
            if way == "reset":
                self.refusing = True
                for writer in list(self.writers):
                    writer.transport.abort()
            self.answers.clear() if way in ("silent", "mute") else None
            self.asks.clear() if way == "silent" else None

        self.loop.do(change())

    def heal(self):
        async def change():
            self.refusing = False
            self.asks.set()
            self.answers.set()

        self.loop.do(change())

    def close(self):
        self.loop.loop.call_soon_threadsafe(self.server.close)
