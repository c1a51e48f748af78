# SPDX-License-Identifier: Apache-2.0
"""Checksums and the shared secret of data connections, byte by byte and between engines: who does not do as the other
side announces is refused and told why, and no byte of a request that was not admitted is stored. Run by
test_options.sh."""

import hashlib
import hmac
import struct
import unittest

from wire import (
    HELLO,
    MIB,
    OK,
    OTHER_LIFE,
    RANDOM,
    READ1,
    READ2,
    WRITE1,
    WRITE2,
    FakeTarget,
    Peer,
    connect,
    header,
    main,
    rest,
    take,
)

CHECKSUM, AUTH = 1, 2
OPTIONS, CHALLENGE, UNAUTHORIZED, CORRUPT = (bytes([code]) + OK[1:] for code in (3, 4, 5, 6))
SECRET = "two words"
EPROTONOSUPPORT = 93

_TABLE = []
for _byte in range(256):
    for _ in range(8):
        _byte = _byte >> 1 ^ (0x82F63B78 if _byte & 1 else 0)
    _TABLE.append(_byte)


def crc32c(data):
    value = 0xFFFFFFFF
    for byte in data:
        value = value >> 8 ^ _TABLE[(value ^ byte) & 0xFF]
    return struct.pack("<I", value ^ 0xFFFFFFFF)


def summed(size, addr, op):
    head = header(size, addr, op)[:20]
    return head + crc32c(head)


def hello(life, options, token=0):
    return header(token, life, HELLO, bytes([options]) + bytes(6))


def proof(role, greeting, ours, theirs, secret=SECRET):
    return hmac.new(secret.encode(), role + b"\0" + greeting + ours + theirs, hashlib.sha256).digest()


class Target(unittest.TestCase):
    """Scripted initiators."""

    settings = ()

    def setUp(self):
        self.target = Peer(4 * MIB, *self.settings)
        self.base = self.target.addr
        self.life = int(self.target.descriptor["lw"]["incarnation"], 16)
        self.target.ask("fill 0 65536 3")
        self.before = self.target.sum(0, 65536)

    def tearDown(self):
        self.assertEqual(self.target.end(), 0)

    def assert_untouched(self):
        self.assertEqual(self.target.sum(0, 65536), self.before)

    def refused(self, data, answer):
        with connect(self.target.data_port) as sock:
            sock.sendall(data)
            self.assertEqual(rest(sock), answer)
        self.assert_untouched()


class Checksums(Target):
    settings = ("tcp_checksum=on",)

    def test_vector(self):
        self.assertEqual(crc32c(b"123456789"), struct.pack("<I", 0xE3069283))  # RFC 3720 and every table of CRCs

    def test_announced(self):
        self.assertIs(self.target.descriptor["lw"]["checksum"], True)
        self.assertNotIn("auth", self.target.descriptor["lw"])

    def test_right_sums_served(self):
        with connect(self.target.data_port) as sock:
            data = RANDOM.randbytes(300000)
            sock.sendall(hello(self.life, CHECKSUM))
            self.assertEqual(take(sock, 8), OK)
            sock.sendall(summed(len(data), self.base, WRITE2) + data + crc32c(data))
            self.assertEqual(take(sock, 8), OK)
            for length in (1, 5, 4096, 300000):  # short and long ones differ in when the sum is taken
                sock.sendall(summed(length, self.base, READ2) + summed(7, self.base + 1, READ2))
                self.assertEqual(take(sock, 8), OK)
                self.assertEqual(take(sock, length), data[:length])
                self.assertEqual(take(sock, 4), crc32c(data[:length]))
                self.assertEqual(take(sock, 19), OK + data[1:8] + crc32c(data[1:8]))

    def test_right_sums_in_single_bytes_served(self):
        with connect(self.target.data_port) as sock:
            for byte in hello(self.life, CHECKSUM) + summed(9, self.base, WRITE2) + b"123456789" + crc32c(b"123456789"):
                sock.sendall(bytes([byte]))
            self.assertEqual(take(sock, 16), OK + OK)

    def test_wrong_sum_of_a_body_corrupt_and_closed(self):
        wrong = bytes([crc32c(b"abc")[0] ^ 1]) + crc32c(b"abc")[1:]
        with connect(self.target.data_port) as sock:
            sock.sendall(hello(self.life, CHECKSUM) + summed(3, self.base + MIB, WRITE2) + b"abc" + wrong)
            sock.sendall(summed(3, self.base, WRITE2) + b"xyz" + crc32c(b"xyz"))
            self.assertEqual(rest(sock), OK + CORRUPT)
        self.assert_untouched()

    def test_wrong_sum_of_a_header_corrupt_and_nothing_stored(self):
        for op in (READ2, WRITE2):
            for at in range(24):
                head = bytearray(summed(3, self.base, op))
                head[at] ^= 0x10
                if head[16] == HELLO:
                    continue
                with connect(self.target.data_port) as sock:
                    sock.sendall(hello(self.life, CHECKSUM) + bytes(head) + b"abc" + crc32c(b"abc"))
                    answer = rest(sock)
                if bytes(head)[16] & 0x80:
                    self.assertEqual(answer, OK + CORRUPT, at)
                else:
                    self.assertEqual(answer, OK, at)  # version 1 has no status
        self.assert_untouched()

    def test_initiator_without_them_refused(self):
        self.refused(header(3, self.base, WRITE2) + b"abc", OPTIONS)
        self.refused(header(3, self.base, WRITE1) + b"abc", b"")
        self.refused(header(3, self.base, READ1), b"")
        self.refused(hello(self.life, 0), OPTIONS)
        self.refused(hello(self.life, AUTH) + bytes(32), OPTIONS)
        self.refused(hello(self.life, CHECKSUM | 0x80), OPTIONS)

    def test_other_life_refused(self):
        self.refused(hello(self.life ^ 1, CHECKSUM), OTHER_LIFE)


class Secret(Target):
    settings = ("tcp_secret=two_words",)

    def greet(self, options=AUTH, secret="two_words"):
        sock = connect(self.target.data_port)
        greeting, ours = hello(self.life, options, RANDOM.getrandbits(64) | 1 << 8), RANDOM.randbytes(32)
        sock.sendall(greeting + ours)
        answer = take(sock, 72)
        self.assertEqual(answer[:8], CHALLENGE)
        theirs = answer[8:40]
        self.assertEqual(answer[40:], proof(b"target", greeting, ours, theirs, "two_words"))
        return sock, proof(b"initiator", greeting, ours, theirs, secret)

    def test_announced_and_never_shown(self):
        self.assertIs(self.target.descriptor["lw"]["auth"], True)
        self.assertNotIn("two_words", str(self.target.descriptor) + "".join(self.target.log))

    def test_right_proof_served(self):
        sock, answer = self.greet()
        with sock:
            sock.sendall(answer + header(3, self.base, WRITE2) + b"abc")
            self.assertEqual(take(sock, 16), OK + OK)

    def test_right_proof_in_single_bytes_served(self):
        sock, answer = self.greet()
        with sock:
            for byte in answer + header(3, self.base, READ2):
                sock.sendall(bytes([byte]))
            self.assertEqual(take(sock, 16), OK + OK)

    def test_wrong_proofs_unauthorized(self):
        for secret in ("two_word", "two_wordsx", "TWO_WORDS"):
            sock, answer = self.greet(secret=secret)
            with sock:
                sock.sendall(answer + header(3, self.base, WRITE2) + b"abc")
                self.assertEqual(rest(sock), UNAUTHORIZED)
        for at in range(32):
            sock, answer = self.greet()
            with sock:
                sock.sendall(answer[:at] + bytes([answer[at] ^ 1]) + answer[at + 1 :])
                self.assertEqual(rest(sock), UNAUTHORIZED)
        self.assert_untouched()

    def test_proof_of_another_connection_unauthorized(self):
        first, answer = self.greet()
        second, _ = self.greet()
        with first, second:
            second.sendall(answer)
            self.assertEqual(rest(second), UNAUTHORIZED)
            first.sendall(answer)
            self.assertEqual(take(first, 8), OK)

    def test_target_proof_does_not_serve_as_ours(self):
        sock = connect(self.target.data_port)
        with sock:
            sock.sendall(hello(self.life, AUTH) + bytes(32))
            answer = take(sock, 72)
            sock.sendall(answer[40:])
            self.assertEqual(rest(sock), UNAUTHORIZED)

    def test_requests_without_or_before_the_proof_refused(self):
        self.refused(header(3, self.base, WRITE2) + b"abc", OPTIONS)
        self.refused(header(3, self.base, WRITE1) + b"abc", b"")
        self.refused(header(16, self.base, READ2), OPTIONS)
        self.refused(hello(self.life, 0) + header(3, self.base, WRITE2) + b"abc", OPTIONS)
        self.refused(hello(self.life, CHECKSUM) + header(3, self.base, WRITE2) + b"abc", OPTIONS)
        sock, _ = self.greet()
        with sock:
            sock.sendall(header(3, self.base, WRITE2) + bytes(8) + header(3, self.base, WRITE2) + b"abc")
            self.assertEqual(rest(sock), UNAUTHORIZED)
        self.assert_untouched()

    def test_stranger_that_guesses_a_token_does_not_end_the_lane(self):
        sock, answer = self.greet()
        with sock:
            sock.sendall(answer)
            self.assertEqual(take(sock, 8), OK)
            with connect(self.target.data_port) as stranger:
                stranger.sendall(hello(self.life, AUTH, 1 << 8) + bytes(32) + bytes(32))
                self.assertEqual(rest(stranger)[-8:], UNAUTHORIZED)
            sock.sendall(header(3, self.base, READ2))
            self.assertEqual(take(sock, 8), OK)


class Engines(unittest.TestCase):
    """Engines of all settings with each other."""

    SETTINGS = ((), ("tcp_checksum=on",), ("tcp_secret=a",), ("tcp_checksum=on", "tcp_secret=a"), ("tcp_secret=b",))

    def test_alike_served_others_refused_with_a_reason(self):
        targets = [(settings, Peer(MIB, *settings)) for settings in self.SETTINGS]
        for settings in self.SETTINGS:
            initiator = Peer(MIB, *settings)
            for other, target in targets:
                segment = initiator.open(target.name)
                if [text.split("=")[0] for text in settings] != [text.split("=")[0] for text in other]:
                    self.assertEqual(segment, -EPROTONOSUPPORT)
                    continue
                for op in ("write", "read"):
                    outcome = initiator.run(op, segment, 0, target.addr, MIB)
                    if settings == other:
                        self.assertEqual(outcome.counts, (1, 0, 0, 0), outcome)
                    else:
                        self.assertEqual((outcome.counts, outcome.reason), ((0, 1, 0, 0), "unauthorized"), outcome)
            self.assertEqual(initiator.end(), 0)
        for _, target in targets:
            self.assertEqual(target.end(), 0)

    def test_fake_without_the_secret_gets_no_byte(self):
        seen = []

        def answer(target, number, op, addr, size, sock):
            seen.append(op)
            return None

        fake = FakeTarget(incarnation=7, answer=answer)
        fake.handshake.document["lw"]["auth"] = True
        initiator = Peer(MIB, "tcp_secret=a")
        segment = initiator.open(fake.name)
        outcome = initiator.run("write", segment, 0, fake.BASE, 1000)
        self.assertEqual((outcome.counts, outcome.reason), ((0, 1, 0, 0), "unauthorized"), outcome)
        self.assertEqual([op for op in seen if op in (WRITE1, WRITE2)], [])
        self.assertEqual(initiator.end(), 0)
        fake.close()

    def test_changed_byte_of_an_answer_corrupt(self):
        def answer(target, number, op, addr, size, sock):
            data = bytearray(RANDOM.randbytes(size))
            sums = crc32c(data)
            data[size // 2] ^= 4
            sock.sendall(OK + data + sums)
            return True

        fake = FakeTarget(incarnation=7, answer=answer)
        fake.handshake.document["lw"]["checksum"] = True
        initiator = Peer(MIB, "tcp_checksum=on")
        segment = initiator.open(fake.name)
        outcome = initiator.run("read", segment, 0, fake.BASE, 100000, 2)
        self.assertEqual((outcome.counts, outcome.reason), ((0, 2, 0, 0), "corrupt"), outcome)
        self.assertEqual(initiator.end(), 0)
        fake.close()


if __name__ == "__main__":
    del Target  # has no tests of its own
    main()
