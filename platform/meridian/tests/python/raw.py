"""The binary protocol frame by frame, for what the client library does not let one ask."""
import itertools
import socket
import struct

KINDS = {
    "connect": 2, "connected": 3, "subscribe": 4, "producer": 5, "send": 6, "ack": 10, "flow": 11, "unsubscribe": 12, "success": 13,
    "error": 14, "close_producer": 15, "close_consumer": 16, "producer_success": 17, "ping": 18, "pong": 19, "redeliver": 20,
    "partitions": 21, "partitions_answer": 22, "lookup": 23, "lookup_answer": 24, "consumer_stats": 25, "consumer_stats_answer": 26,
    "seek": 28, "last_id": 29, "last_id_answer": 30, "topics": 32, "topics_answer": 33, "get_schema": 34, "get_schema_answer": 35,
    "get_or_create_schema": 39, "get_or_create_schema_answer": 40, "watch": 64, "watch_answer": 65, "watch_update": 66,
}
NAMES = {number: name for name, number in KINDS.items()}
# Where an answer says what is wrong: error number, then text.
ERRORS = {"error": (2, 3), "partitions_answer": (4, 5), "lookup_answer": (6, 7), "consumer_stats_answer": (2, 3),
          "get_schema_answer": (2, 3), "get_or_create_schema_answer": (2, 3)}
AUTHORIZATION_ERROR = 4
TOPIC_NOT_FOUND = 11


def varint(number):
    out = bytearray()
    while True:
        byte, number = number & 0x7F, number >> 7
        out.append(byte | (0x80 if number else 0))
        if not number:
            return bytes(out)


def encode(fields):
    """`fields` are number → int, text, bytes or a dict of the same kind; a list repeats."""
    out = bytearray()
    for number, values in fields.items():
        for value in values if isinstance(values, list) else [values]:
            if isinstance(value, int):
                out += varint(number << 3) + varint(int(value))
                continue
            data = encode(value) if isinstance(value, dict) else value.encode() if isinstance(value, str) else value
            out += varint(number << 3 | 2) + varint(len(data)) + data
    return bytes(out)


def decode(data):
    fields, at = {}, 0

    def number():
        nonlocal at
        result = shift = 0
        while True:
            byte = data[at]
            at += 1
            result |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return result

    while at < len(data):
        tag = number()
        if tag & 7 == 0:
            value = number()
        elif tag & 7 == 2:
            length = number()
            value, at = data[at:at + length], at + length
        else:
            size = {1: 8, 5: 4}[tag & 7]
            value, at = data[at:at + size], at + size
        fields.setdefault(tag >> 3, []).append(value)
    return fields


class Raw:
    """A connection, and how its log-in was answered: `connected` is (kind, fields)."""

    def __init__(self, port, token, **connect):
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=15)
        self.buffer, self.ids = b"", itertools.count(1)
        try:
            self.connected = self.ask("connect", {1: "raw", 5: "token", 3: token, 4: 21, **connect.get("fields", {})})
        except ConnectionError:
            self.connected = None, {}

    def send(self, kind, fields):
        command = encode({1: KINDS[kind], KINDS[kind]: fields})
        self.socket.sendall(struct.pack(">II", len(command) + 4, len(command)) + command)

    def receive(self):
        """(kind, fields) of the next frame that is no ping; (None, {}) if the connection has ended."""
        while True:
            try:
                size, = struct.unpack(">I", self.read(4))
                frame = self.read(size)
            except (EOFError, ConnectionError, TimeoutError):
                return None, {}
            length, = struct.unpack(">I", frame[:4])
            command = decode(frame[4:4 + length])
            kind = NAMES.get(command[1][0], command[1][0])
            if kind == "ping":
                self.send("pong", {})
                continue
            return kind, decode(command[command[1][0]][0])

    def read(self, size):
        while len(self.buffer) < size:
            more = self.socket.recv(1 << 16)
            if not more:
                raise EOFError
            self.buffer += more
        taken, self.buffer = self.buffer[:size], self.buffer[size:]
        return taken

    def ask(self, kind, fields):
        self.send(kind, fields)
        return self.receive()

    def close(self):
        self.socket.close()


def refusal(answer):
    """(number, text) of an answer that refuses; `None` if it does not."""
    kind, fields = answer
    if kind not in ERRORS:
        return None
    number, text = ERRORS[kind]
    return (fields[number][0], fields[text][0].decode()) if number in fields else None
