"""The delaying proxy itself: what it says it does to a link, it does."""
import hashlib
import os
import socket
import threading
import time

import pytest

from links import Link
from ports import RANGE, free_ports


@pytest.fixture
def line():
    """A link to a server that sends everything back; makes connections through it."""
    server = socket.create_server(("127.0.0.1", 0))

    def serve():
        while True:
            try:
                connection, _ = server.accept()
            except OSError:
                return
            threading.Thread(target=echo, args=[connection], daemon=True).start()

    def echo(connection):
        try:
            while data := connection.recv(65536):
                connection.sendall(data)
            connection.shutdown(socket.SHUT_WR)
        except OSError:
            pass

    threading.Thread(target=serve, daemon=True).start()
    link = Link("a", "b", {"echo": server.getsockname()[1]})
    link.connect = lambda: socket.create_connection(("127.0.0.1", link.ports["echo"]), timeout=20)
    yield link
    link.close()
    server.close()


def exchange(connection, data):
    threading.Thread(target=connection.sendall, args=[data], daemon=True).start()
    back = b""
    while len(back) < len(data):
        piece = connection.recv(1 << 20)
        assert piece, "closed early"
        back += piece
    return back


def test_it_delays_each_way_by_the_latency(line):
    line.shape(latency_ms=50)
    connection = line.connect()
    exchange(connection, b"warm")
    begun = time.monotonic()
    exchange(connection, b"ping")
    assert 0.1 <= time.monotonic() - begun < 0.3


def test_it_limits_bytes_over_all_connections_and_reorders_nothing(line):
    line.shape(latency_ms=20, bytes_per_s=2_000_000)
    data = [os.urandom(1_000_000) for _ in range(2)]
    connections = [line.connect() for _ in data]
    begun = time.monotonic()
    found = [None, None]

    def run(index):
        found[index] = hashlib.sha256(exchange(connections[index], data[index])).digest()

    threads = [threading.Thread(target=run, args=[index]) for index in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    took = time.monotonic() - begun
    assert found == [hashlib.sha256(each).digest() for each in data]
    assert 0.9 < took < 3, took
    count = line.count()["bytes"]["echo"]
    assert count == {"forward": 2_000_000, "backward": 2_000_000}


def test_a_cut_by_reset_tears_what_is_there_and_what_comes(line):
    connection = line.connect()
    exchange(connection, b"before")
    line.cut("reset")
    with pytest.raises(ConnectionResetError):
        connection.recv(10)
    # Torn as soon as it is there, which a client may see while it still connects.
    with pytest.raises(ConnectionResetError):
        line.connect().recv(10)
    line.heal()
    assert exchange(line.connect(), b"after") == b"after"


def test_a_silent_cut_holds_everything_and_loses_nothing(line):
    connection = line.connect()
    exchange(connection, b"before")
    line.cut("silent")
    connection.sendall(b"during")
    connection.settimeout(0.3)
    with pytest.raises(TimeoutError):
        connection.recv(10)
    line.heal()
    connection.settimeout(20)
    assert connection.recv(10) == b"during"


def test_the_end_of_a_connection_passes_after_its_data(line):
    line.shape(latency_ms=30)
    connection = line.connect()
    connection.sendall(b"last")
    connection.shutdown(socket.SHUT_WR)
    back = b""
    while piece := connection.recv(100):
        back += piece
    assert back == b"last"


def test_ports_that_are_used_again_are_none_that_an_outgoing_connection_gets():
    first, last = map(int, RANGE.read_text().split())
    ports = free_ports(20)
    assert len(set(ports)) == 20 and not [port for port in ports if first <= port <= last]
    server = socket.create_server(("127.0.0.1", ports[0]))
    assert ports[0] not in free_ports(20)
    server.close()
