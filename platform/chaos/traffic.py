"""Traffic with the stock client, each side in a process of its own, so that measuring it costs it nothing."""
import array
import bisect
import functools
import multiprocessing
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import program  # finds the harness
import pulsar

TICK_SECONDS = 0.002
SPAWN = multiprocessing.get_context("spawn")
FOREVER = 1e12


def percentile(values, share):
    """Of any numbers; 0 if there are none."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


def open_client(url, log_file):
    logger = pulsar.FileLogger(pulsar.LoggerLevel.Warn, log_file)
    return pulsar.Client(url, operation_timeout_seconds=60, logger=logger)


class Side:
    """A process that says when it is ready, works until it is told to stop, and gives back what it saw."""

    def __init__(self, work, *arguments):
        self.pipe, theirs = SPAWN.Pipe()
        self.process = SPAWN.Process(target=work, args=(theirs, *arguments), daemon=True)
        self.process.start()
        theirs.close()
        self.answer("its start", 120)

    def answer(self, what, seconds):
        if not self.pipe.poll(seconds):
            self.process.kill()
            raise RuntimeError(f"no answer within {seconds} s: {what}")
        return self.pipe.recv()

    def end(self, seconds=180):
        self.pipe.send("stop")
        result = self.answer("what it saw", seconds)
        self.process.join(10)
        return result


class Sent:
    """What a publisher saw: for each message when it was due, and how long until it was confirmed (none = refused)."""

    def __init__(self, due, took, refused, resolved):
        self.due, self.took, self.refused, self.resolved = due, took, refused, resolved

    def confirmed(self):
        return [number for number, took in enumerate(self.took) if took >= 0]

    @functools.cached_property
    def moments(self):
        """When confirmations came, in order."""
        return sorted(due + took for due, took in zip(self.due, self.took) if took >= 0)

    def longest_gap(self, since=0.0, until=FOREVER):
        """A gap counts that begins before or ends after the time that is asked for."""
        first, last = bisect.bisect_left(self.moments, since), bisect.bisect_right(self.moments, until)
        moments = self.moments[max(0, first - 1):last + 1]
        return max((after - before for before, after in zip(moments, moments[1:])), default=0.0)

    def latencies(self, since=0.0, until=FOREVER):
        return [took for due, took in zip(self.due, self.took) if took >= 0 and since <= due <= until]

    def p99(self, since=0.0, until=FOREVER):
        return percentile(self.latencies(since, until), 0.99)


def publish(pipe, url, log_file, topic, rate, body_bytes, batching, limit):
    """Message n is due at start + n / rate; its latency counts from there."""
    client = open_client(url, log_file)
    producer = client.create_producer(topic, batching_enabled=batching, batching_max_publish_delay_ms=2,
                                      batching_max_messages=1000, send_timeout_millis=0, block_if_queue_full=True,
                                      max_pending_messages=50_000)
    due, took, refused = array.array("d"), array.array("d"), []
    filling, resolved = b"x" * max(0, body_bytes - 8), 0
    pipe.send("ready")
    begun = time.monotonic()

    def send(number):
        def done(result, _id):
            nonlocal resolved
            resolved += 1
            if result == pulsar.Result.Ok:
                took[number] = time.monotonic() - due[number]
            else:
                refused.append((number, str(result)))

        due.append(begun + number / rate if rate else time.monotonic())
        took.append(-1.0)
        producer.send_async(b"%08d" % number + filling, done)

    while not pipe.poll() and (not limit or len(due) < limit):
        wanted = int((time.monotonic() - begun) * rate) if rate else len(due) + 500
        for number in range(len(due), min(wanted, limit or wanted)):
            send(number)
        if rate:
            time.sleep(TICK_SECONDS)
    deadline = time.monotonic() + 120
    while resolved < len(due) and time.monotonic() < deadline:
        time.sleep(0.01)
    pipe.send(Sent(due, took, refused, resolved))
    client.close() if resolved == len(due) else client.shutdown()


class Publisher(Side):
    """Sends numbered messages at a rate (0 = as fast as it goes) until it is ended or `limit` is reached."""

    def __init__(self, made, topic, rate, body_bytes=1024, batching=True, limit=0):
        super().__init__(publish, made.url(), str(made.folder / "publisher.log"), topic, rate, body_bytes, batching, limit)

    def wait(self, seconds=3600):
        """Until the limit was sent and all of it answered."""
        result = self.answer("all sent", seconds)
        self.process.join(30)
        return result


def consume(pipe, url, log_file, topic, limit):
    client = open_client(url, log_file)
    consumer = client.subscribe(topic, "traffic", initial_position=pulsar.InitialPosition.Earliest, receiver_queue_size=5000)
    numbers, moments = array.array("q"), array.array("d")
    pipe.send("ready")
    stopped = False
    while not (limit and len(numbers) >= limit):
        stopped = stopped or pipe.poll()
        try:
            message = consumer.receive(1000)
        except pulsar.Timeout:
            if stopped:
                break
            continue
        numbers.append(int(message.data()[:8]))
        moments.append(time.monotonic())
        consumer.acknowledge(message)
    pipe.send((numbers, moments))
    client.close()


class Consumer(Side):
    """Reads and acknowledges until it is ended and nothing is left, or `limit` was read: numbers and when they came."""

    def __init__(self, made, topic, limit=0):
        super().__init__(consume, made.url(), str(made.folder / "consumer.log"), topic, limit)

    def wait(self, seconds=3600):
        result = self.answer("all read", seconds)
        self.process.join(30)
        return result


class ManyTopics:
    """One producer on each of many topics, which sends one message a `pause`; each is timed until its confirmation."""

    def __init__(self, made, count, pause, prefix="many"):
        self.client = made.client(operation_timeout_seconds=60)
        self.topics = [f"persistent://{program.NAMESPACE}/{prefix}-{number}" for number in range(count)]
        self.producers = self.create()
        self.pause, self.taken, self.refused, self.sent = pause, [], [], 0
        self.stopped = threading.Event()
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def create(self, at_once=32):
        def one(topic):
            return self.client.create_producer(topic, batching_enabled=False, send_timeout_millis=0)

        with ThreadPoolExecutor(at_once) as threads:
            return list(threads.map(one, self.topics))

    def run(self):
        while not self.stopped.is_set():
            begun = time.monotonic()
            for at, producer in enumerate(self.producers):
                self.send(at, producer)
                # Spread over the pause, so that some message is under way at every moment.
                due = begun + self.pause * (at + 1) / len(self.producers)
                if at % 16 == 15:
                    time.sleep(max(0.0, due - time.monotonic()))
            time.sleep(max(0.0, begun + self.pause - time.monotonic()))

    def send(self, at, producer):
        begun = time.monotonic()

        def done(result, _id):
            if result == pulsar.Result.Ok:
                self.taken.append((at, begun, time.monotonic()))
            else:
                self.refused.append((at, str(result)))

        self.sent += 1
        producer.send_async(b"x" * 100, done)

    def waits(self, since=0.0, until=FOREVER):
        """For each topic its longest time from a send to the confirmation."""
        longest = {}
        for at, begun, confirmed in list(self.taken):
            if confirmed >= since and begun <= until:
                longest[at] = max(longest.get(at, 0.0), confirmed - begun)
        return longest

    def end(self, seconds=90):
        """Whether every message was answered."""
        self.stopped.set()
        self.thread.join(seconds)
        deadline = time.monotonic() + seconds
        while not self.answered() and time.monotonic() < deadline:
            time.sleep(0.05)
        whole = self.answered()
        self.client.close() if whole else self.client.shutdown()
        return whole

    def answered(self):
        return len(self.taken) + len(self.refused) >= self.sent
