#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the handmade inputs under test/fuzz/seeds/. Files there that this does not write, regressions, stay as they
are. The encodings are those that the head of each fuzzer describes."""

import json
import os
import struct

HERE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "seeds")
ASLEEP = 0x80  # the other side sleeps through this step
WRONG = 0x20  # a sum of this step is


def write(fuzzer, name, data):
    folder = os.path.join(HERE, fuzzer)
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, name), "wb") as file:
        file.write(data)


# The target's options, operations, edges of buffers (begin and end of each) and special sizes.
ABRUPT, STINGY, TCP, SMALL_ANSWERS, SMALL_REQUESTS = 0x03, 0x04, 0x38, 0x40, 0x80
SUMS, SECRET, BOTH, SUMS_UNGREETED, BOTH_UNGREETED, SUMS_TCP = range(0x08, 0x38, 8)
READ2, WRITE2, READ1, WRITE1, HELLO, HELLO1, ODD, ODD1 = range(8)
FIRST, SECOND, READ_ONLY, WRITE_ONLY, OWN, UNEVEN, LARGE = range(0, 14, 2)
END = 1  # of a buffer
ALL_OF_LARGE, LARGE_BYTES, ALL_OF_LARGE_1, HUGE, ALL_ONES = 4, 9, 10, 11, 12


def request(op, edge, offset, size, flags=0):
    return struct.pack("<BBBhBH", 2 | flags, op, edge, offset, 0, size)


def special(op, edge, offset, size, flags=0):
    return struct.pack("<BBBhB", 2 | flags, op, edge, offset, 135 + size)


def raw(data, flags=0):
    return b"".join(bytes([flags, len(data[i : i + 255])]) + data[i : i + 255] for i in range(0, len(data), 255))


def body(size, flags=0):
    return struct.pack("<BH", 6 | flags, size)


def storm(count, kind=0):
    return bytes([10, count // 4, kind])


def time(ms):
    return bytes([14, ms // 16])


def greeting(count):
    return bytes([16, count])


def another(what, under_way=0):
    return struct.pack("<BBH", 18, what, under_way)


# Tokens of connections beside the client's, as steps of its count; of another lane; and a greeting gone wrong.
NEXT_1, NEXT_2, NEXT_127, NEXT_128, BEFORE_127, SAME, BEFORE, OTHER_LANE, GARBLED = 0, 2, 3, 4, 5, 6, 7, 8, 16
PROVE, CROWD = bytes([17]), bytes([19])
REST, TAKE_ALL, HALF, WAIT, REVOKE = bytes([9]), bytes([12]), bytes([13]), bytes([14, 0]), bytes([15])


def take(size):
    return struct.pack("<BH", 11, size)


def tcp_target():
    hello = request(HELLO, 0, 0, 0)
    pair = request(WRITE2, FIRST, 10, 100) + REST + request(READ2, FIRST, 0, 200)
    old = request(WRITE1, SECOND, 0, 300) + REST + request(READ1, SECOND, 1, 299)
    broken = request(WRITE2, LARGE, 0, 50000) + body(10000)
    large = special(WRITE2, LARGE, 0, LARGE_BYTES) + REST + special(READ2, LARGE, 0, LARGE_BYTES)
    seeds = {
        "write_read": b"\0" + pair,
        "write_read_v1": b"\0" + old,
        "hello": b"\0" + hello + pair + old,
        "hello_other_life": b"\0" + request(HELLO, 0, 0, 127) + pair,
        "hello_with_size": b"\0" + request(HELLO, FIRST, 0, 200),
        "refused": b"\0" + pair + request(READ2, WRITE_ONLY, 0, 8) + pair,
        "refused_v1": b"\0" + request(READ1, OWN, 0, 8) + pair,
        "write_refused": b"\0" + request(WRITE2, READ_ONLY, 0, 64) + body(64),
        "seam": b"\0" + request(WRITE2, FIRST | END, -10, 20) + REST + request(READ2, FIRST | END, -20, 40),
        "beyond": b"\0" + request(READ2, SECOND | END, -10, 11),
        "uneven": b"\0" + request(READ2, UNEVEN, 0, 2900) + request(READ2, UNEVEN, -1, 2),
        "two_rights": b"\0" + request(READ2, READ_ONLY | END, -8, 16),
        "size_0": b"\0" + request(READ1, FIRST, 0, 0),
        "wraps": b"\0" + special(READ2, FIRST, 0, ALL_ONES),
        "half_of_all": b"\0" + special(WRITE2, FIRST, 0, HUGE) + body(1000),
        "large": bytes([SMALL_ANSWERS | SMALL_REQUESTS])
        + special(WRITE2, LARGE, 0, LARGE_BYTES)
        + REST
        + special(READ2, LARGE, 0, LARGE_BYTES),
        "large_1": b"\0" + special(READ2, LARGE, 0, ALL_OF_LARGE_1),
        "all_of_large": b"\0" + special(WRITE2, LARGE, 0, ALL_OF_LARGE) + REST + special(READ2, LARGE, 0, ALL_OF_LARGE),
        "nothing_is_read": bytes([STINGY | SMALL_ANSWERS]) + request(READ2, LARGE, 0, 4000) * 20 + storm(400, 1),
        "queue_full": bytes([STINGY | SMALL_ANSWERS])
        + special(READ2, LARGE, 0, LARGE_BYTES)
        + storm(400, 2)
        + take(50),
        "queue_full_and_a_body": bytes([STINGY | SMALL_ANSWERS])
        + special(READ2, LARGE, 0, LARGE_BYTES)
        + storm(168, 1)
        + (pair + take(1000)) * 4,
        "held": bytes([STINGY | SMALL_ANSWERS])
        + special(READ2, LARGE, 0, LARGE_BYTES)
        + request(WRITE2, LARGE, 100, 5000)
        + body(5000)
        + request(READ2, LARGE, 50, 200)
        + take(1000)
        + TAKE_ALL,
        "many_at_once": b"\0" + (request(WRITE2, FIRST, 5, 1, ASLEEP) + body(1, ASLEEP)) * 40 + WAIT,
        "storm": bytes([SMALL_ANSWERS]) + storm(1000),
        "revoke_in_a_body": b"\0" + request(WRITE2, LARGE, 0, 50000) + body(30000) + REVOKE,
        "revoke_and_go_on": b"\0" + pair + REVOKE + pair + request(READ2, LARGE, 0, 10) + pair,
        "revoke_under_answers": bytes([STINGY | SMALL_ANSWERS]) + special(READ2, LARGE, 0, LARGE_BYTES) * 2 + REVOKE,
        "lingers_too_long": bytes([STINGY | SMALL_ANSWERS])
        + special(READ2, LARGE, 0, LARGE_BYTES)
        + request(READ2, OWN, 0, 8)
        + time(1000)
        + time(2000),
        "lingers": b"\0" + request(READ2, OWN, 0, 8) + time(1000) + raw(b"more") + time(2000),
        "byte_by_byte": b"\0"
        + b"".join(raw(bytes([byte])) for byte in struct.pack("<QQQ", 5, 0x50000000, 0x81) + b"hello"),
        "odd_operations": b"\0"
        + request(ODD, FIRST, 0, 50)
        + request(ODD1, FIRST, 0, 50)
        + request(HELLO1, FIRST, 1, 5),
        "http": b"\0" + raw(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept: */*\r\n\r\n"),
        "half_in_a_body": b"\0" + request(WRITE2, FIRST, 0, 500) + body(100) + HALF,
        "half_with_answers": bytes([STINGY | SMALL_ANSWERS]) + special(READ2, LARGE, 0, LARGE_BYTES) + HALF + WAIT,
        "gone_in_a_body": bytes([ABRUPT]) + request(WRITE2, LARGE, 0, 50000) + body(30000),
        "gone_unread": bytes([ABRUPT | STINGY]) + special(READ2, LARGE, 0, LARGE_BYTES) + pair,
        "hello_with_token": b"\0" + request(HELLO, 0, 0, 5) + pair,
        "hello_again": b"\0" + request(HELLO, 0, 0, 5) + pair + request(HELLO, 0, 0, 3) + pair + another(NEXT_1) + pair,
        "hello_options": b"\0" + pair + request(HELLO, 0, 0, 126) + pair,
        "hello_options_auth": b"\0" + pair + request(HELLO, 0, 0, 125) + pair,
        "fence": b"\0" + greeting(1) + broken + another(NEXT_1, 20000) + pair,
        "fence_in_all_of_a_body": b"\0" + greeting(1) + broken + another(NEXT_1, 40000) + pair,
        "fence_again_and_again": b"\0" + greeting(255) + (broken + another(NEXT_1, 20000)) * 3 + pair,
        "fence_far_ahead": b"\0" + greeting(250) + broken + another(NEXT_127, 20000) + pair,
        "fence_between_requests": b"\0" + greeting(7) + pair + another(NEXT_2) + pair,
        "fence_in_a_header": b"\0" + greeting(7) + raw(b"0123456789") + another(SAME) + pair,
        "fence_half_around": b"\0" + greeting(7) + broken + another(NEXT_128, 20000) + pair,
        "fence_revoked": b"\0" + greeting(7) + pair + REVOKE + another(NEXT_1) + pair,
        "fence_small": bytes([SMALL_ANSWERS | SMALL_REQUESTS]) + greeting(7) + broken + another(NEXT_1, 60000) + large,
        "outrun": b"\0" + greeting(7) + broken + another(BEFORE, 20000) + REST + pair,
        "outrun_by_far": b"\0" + greeting(7) + broken + another(BEFORE_127, 40000) + pair,
        "lanes_side_by_side": b"\0" + greeting(7) + broken + another(NEXT_1 | OTHER_LANE, 20000) + REST + pair,
        "no_token_no_fence": b"\0" + greeting(0) + broken + another(NEXT_1, 20000) + REST + pair,
        "sums": bytes([SUMS]) + pair + large,
        "sums_small": bytes([SUMS | SMALL_ANSWERS | SMALL_REQUESTS]) + large,
        "sums_of_large": bytes([SUMS | SMALL_ANSWERS]) + special(READ2, LARGE, 0, LARGE_BYTES) * 2,
        "sums_of_all": bytes([SUMS])
        + special(READ2, LARGE, 0, ALL_OF_LARGE)
        + special(WRITE2, LARGE, 0, ALL_OF_LARGE)
        + REST,
        "sums_of_all_small": bytes([SUMS | SMALL_ANSWERS]) + special(READ2, LARGE, 0, ALL_OF_LARGE) + pair,
        "sums_held": bytes([SUMS | STINGY | SMALL_ANSWERS])
        + special(READ2, LARGE, 0, LARGE_BYTES)
        + request(WRITE2, LARGE, 100, 5000)
        + body(5000)
        + request(READ2, LARGE, 50, 200)
        + take(1000)
        + TAKE_ALL,
        "sums_storm": bytes([SUMS | SMALL_ANSWERS]) + storm(1000, 2),
        "sum_of_a_header": bytes([SUMS]) + pair + request(READ2, FIRST, 0, 20, WRONG) + pair,
        "sum_of_a_body": bytes([SUMS]) + pair + request(WRITE2, FIRST, 0, 200) + bytes([9 | WRONG]) + pair,
        "sum_in_parts": bytes([SUMS])
        + request(WRITE2, FIRST, 0, 200)
        + raw(bytes(200))
        + raw(b"1")
        + raw(b"2")
        + raw(b"34"),
        "sums_v1": bytes([SUMS]) + pair + old,
        "sums_ungreeted": bytes([SUMS_UNGREETED]) + pair,
        "sums_ungreeted_v1": bytes([SUMS_UNGREETED]) + old,
        "sums_greeted_late": bytes([SUMS_UNGREETED]) + greeting(9) + pair + another(NEXT_1) + pair,
        "sums_not_greeted_so": bytes([SUMS_UNGREETED]) + request(HELLO, 0, 0, 126) + pair,
        "sums_fence": bytes([SUMS]) + broken + another(NEXT_1, 20000) + pair,
        "sums_fence_all": bytes([SUMS]) + broken + another(NEXT_1, 40000) + pair,
        "sums_fence_before_a_sum": bytes([SUMS])
        + request(WRITE2, FIRST, 0, 100)
        + raw(bytes(100))
        + another(NEXT_1)
        + pair,
        "sums_revoked_before_a_sum": bytes([SUMS]) + request(WRITE2, LARGE, 0, 100) + raw(bytes(100)) + REVOKE,
        "sums_revoked": bytes([SUMS]) + broken + REVOKE,
        "sums_real": bytes([SUMS_TCP]) + pair + large,
        "sums_real_gone": bytes([SUMS_TCP | ABRUPT]) + broken,
        "secret": bytes([SECRET]) + pair + old,
        "secret_and_sums": bytes([BOTH]) + pair + large,
        "secret_fence": bytes([SECRET]) + broken + another(NEXT_1, 20000) + pair,
        "secret_garbled": bytes([SECRET]) + broken + another(NEXT_1 | GARBLED, 20000) + REST + pair,
        "secret_outrun": bytes([BOTH]) + broken + another(BEFORE, 20000) + pair,
        "secret_unproven": bytes([BOTH_UNGREETED]) + request(HELLO, 0, 0, 5) + pair,
        "secret_by_steps": bytes([BOTH_UNGREETED]) + request(HELLO, 0, 0, 5) + PROVE + pair,
        "secret_not_listened_to": bytes([BOTH_UNGREETED])
        + request(HELLO, 0, 0, 5, ASLEEP)
        + body(32, ASLEEP)
        + request(READ2, FIRST, 0, 8),
        "secret_ungreeted": bytes([BOTH_UNGREETED]) + pair,
        "secret_where_staging_ends": bytes([SECRET])
        + WAIT
        + b"".join(
            request(WRITE2, LARGE, 0, size, ASLEEP) + body(size, ASLEEP)
            for size in (16000, 16000, 16000, 12000, 61184 - 60096 - 24 - 30)
        )
        + request(HELLO, 0, 0, 9, ASLEEP)
        + PROVE
        + pair,
        "secret_again": bytes([SECRET]) + pair + request(HELLO, 0, 0, 6) + PROVE + pair,
        "secret_again_unproven": bytes([SECRET]) + pair + request(HELLO, 0, 0, 6) + body(31) + WAIT + body(1),
        "leaves": bytes([TCP]) + request(HELLO, 0, 0, 5) + pair + CROWD + pair,
        "leaves_unread": bytes([TCP | STINGY]) + request(HELLO, 0, 0, 5) + pair + CROWD + pair,
        "leaves_with_a_full_buffer": bytes([TCP | SMALL_ANSWERS])
        + request(HELLO, 0, 0, 5)
        + request(READ2, LARGE, 0, 20000)
        + CROWD
        + pair,
        "stays_without_hello": bytes([TCP]) + pair + CROWD + pair,
        "stays_in_a_header": bytes([TCP]) + request(HELLO, 0, 0, 5) + raw(b"header") + CROWD,
        "stays_in_a_body": bytes([TCP]) + request(HELLO, 0, 0, 5) + broken + CROWD + REST + pair,
        "stays_before_a_sum": bytes([SUMS_TCP]) + request(WRITE2, FIRST, 0, 100) + raw(bytes(100)) + CROWD,
        "stays_refused": bytes([TCP | STINGY]) + greeting(1) + request(READ2, OWN, 0, 8) + CROWD,
        "leaves_with_sums": bytes([SUMS_TCP]) + pair + CROWD,
        "padding": b"\0" + bytes([20, READ2, FIRST, 0, 0, 0, 100, 0]) + b"padding",
        "padding_hello": b"\0" + bytes([20, HELLO, FIRST, 0, 0, 0, 200, 0]) + b"padding",
        "real_connection": bytes([TCP]) + hello + pair + special(READ2, LARGE, 0, LARGE_BYTES),
        "real_refusal": bytes([TCP]) + request(READ2, OWN, 0, 8) + body(60000),
        "real_refusal_after_half": bytes([TCP | STINGY])
        + special(READ2, LARGE, 0, LARGE_BYTES)
        + request(READ2, OWN, 0, 8)
        + HALF
        + WAIT,
        "real_gone": bytes([TCP | ABRUPT | STINGY]) + special(READ2, LARGE, 0, LARGE_BYTES),
        "real_reset": bytes([TCP | ABRUPT]) + request(WRITE2, LARGE, 0, 50000) + body(30000),
    }
    for name, data in seeds.items():
        write("tcp_target", name, data)


# The peer's options, requests and steps.
V2, V2_HELLO, V1, SMALL, DEAF = 0, 1, 3, 4, 8
LENGTHS = (1, 7, 8, 9, 24, 100, 4096, 16384, 16385, 40000, 64512)


def read(length, timeout=0):
    return bytes([LENGTHS.index(length) * 2 | timeout << 5])


def store(length, timeout=0):
    return bytes([LENGTHS.index(length) * 2 + 1 | timeout << 5])


def time_passes(ms):
    return bytes([14, ms // 8])


# More options.
CHECKSUM, AUTH, SPLICE, SOON_IDLE = 1, 2, 4, 8


def peer(options, requests, *steps, more=0):
    first = options | len(requests) << 4 | (0x80 if more else 0)
    return bytes([first, more] if more else [first]) + b"".join(requests) + b"".join(steps)


OK, NEXT, ALL, CLOSE, MUTE, SHUT_EAR, NO_EAR, PEER_WAITS, SPOIL, LEAVE = (
    bytes([n]) for n in (0, 4, 6, 8, 9, 10, 13, 15, 16, 17)
)
CORRUPT, LEAVING = 6, 7


def status(code):
    return bytes([1, code])


def filler(size):
    return struct.pack("<BH", 3, size)


def submit(what, flags=0):
    return bytes([11 | flags]) + what


def cancel(task):
    return bytes([12, task])


def tcp_initiator():
    mixed = [read(100), store(100), read(40000), store(40000), read(1), store(1)]
    seeds = {
        "answers": peer(V2, mixed, ALL),
        "answers_hello": peer(V2_HELLO, mixed, ALL),
        "answers_v1": peer(V1, mixed, ALL),
        "small": peer(V2_HELLO | SMALL, mixed, ALL, ALL, ALL),
        "one_by_one": peer(V2_HELLO, mixed, *[NEXT] * 12),
        "silent": peer(V2_HELLO, mixed),
        "other_life": peer(V2_HELLO, mixed, status(2)),
        "hello_refused": peer(V2_HELLO, mixed, status(1)),
        "unknown_status": peer(V2, mixed, NEXT, status(3)),
        "no_status": peer(V2, mixed, raw(b"HTTP/1.1 200 OK\r\n\r\n").replace(b"\0", b"\2", 1)),
        "refused": peer(V2, mixed, NEXT, status(1), ALL),
        "refused_at_once": peer(V2_HELLO, mixed, OK, status(1), OK, status(1), OK, status(1)),
        "refused_in_a_body": peer(V2 | DEAF, [store(64512)] * 6, *[OK] * 8, status(1), NO_EAR, PEER_WAITS, ALL),
        "ok_in_a_body": peer(V2 | DEAF, [store(64512)] * 6, *[OK] * 16),
        "ok_in_the_last_slice": peer(
            V2 | DEAF, [], *[submit(store(16384), ASLEEP)] * 16, PEER_WAITS, *[OK] * 14, NO_EAR, ALL
        ),
        "time_is_over": peer(V2, [read(100, 2), store(64512, 3)], time_passes(16), NEXT, time_passes(800), ALL),
        "time_is_over_unsent": peer(V2 | DEAF, [store(64512, 4)] * 7, time_passes(200), time_passes(800), ALL),
        "closed_again_and_again": peer(V2, mixed, CLOSE, CLOSE, CLOSE),
        "closed_and_honest": peer(V2, mixed, NEXT, CLOSE, ALL),
        "part_of_a_body": peer(V2, [read(40000)] * 3, OK, filler(10000), CLOSE, OK, filler(16000), MUTE),
        "too_much": peer(V2, [read(100)], OK, filler(101)),
        "unasked": peer(V2, [read(1)], ALL, filler(1)),
        "no_ear": peer(V2, [store(64512)] * 6, SHUT_EAR, PEER_WAITS, ALL),
        "canceled": peer(V2, mixed, cancel(0), cancel(3), NEXT, cancel(2)),
        "canceled_unsent": peer(V2 | DEAF, [store(64512)] * 6, cancel(5), cancel(0), time_passes(400), NO_EAR, ALL),
        "later": peer(
            V2_HELLO, [], submit(read(24)), ALL, ALL, submit(store(4096)), ALL, CLOSE, submit(read(7)), ALL, ALL
        ),
        "bytes_of_a_status": peer(
            V2_HELLO, [read(9)], *[b"\2\1" + bytes([byte]) for byte in (bytes(4) + b"VTCM") * 2], filler(9)
        ),
    }
    for name, more in {"sums": CHECKSUM, "secret": AUTH, "both": CHECKSUM | AUTH, "pipe": SPLICE}.items():
        some = {
            "answers": [ALL, ALL, ALL],
            "one_by_one": [NEXT] * 15,
            "silent": [],
            "closed_again_and_again": [CLOSE, CLOSE, CLOSE],
            "closed_and_honest": [NEXT, NEXT, NEXT, CLOSE, ALL, ALL, ALL],
            "spoiled_greeting": [SPOIL, ALL, ALL],
            "spoiled_answers": [NEXT, NEXT] + [SPOIL, NEXT] * 4 + [ALL],
            "corrupt": [NEXT, NEXT, NEXT, status(CORRUPT), ALL, ALL],
            "leaves": [NEXT, NEXT, NEXT, LEAVE, ALL, ALL],
            "part_of_a_body": [NEXT, NEXT, OK, filler(50), CLOSE, ALL, ALL],
            "unasked": [bytes([ASLEEP])] * 3,
            "time_is_over": [NEXT, NEXT, cancel(1), time_passes(800), ALL, ALL],
        }
        for what, steps in some.items():
            seeds[f"{name}_{what}"] = peer(V2_HELLO, mixed, *steps, more=more)
            seeds[f"{name}_{what}_late"] = peer(
                V2_HELLO | DEAF | SMALL, [store(64512)] * 6, *steps, NO_EAR, PEER_WAITS, *steps, more=more
            )
    seeds |= {
        "greeted_otherwise": peer(V2_HELLO, mixed, status(3), status(5), more=CHECKSUM | AUTH),
        "ok_before_the_proof": peer(V2_HELLO, mixed, bytes([4 | ASLEEP]), OK, ALL, more=AUTH),
        "leaves_at_once": peer(V2_HELLO, mixed, LEAVE, NEXT, status(LEAVING), CLOSE, ALL, ALL),
        "leaves_often": peer(V2_HELLO, mixed, *[LEAVE] * 8),
        "leaves_often_with_sums": peer(V2_HELLO, mixed, NEXT, *[LEAVE, NEXT, NEXT] * 6, more=CHECKSUM | AUTH),
        "leaves_idle": peer(V2_HELLO, [], submit(read(24)), ALL, ALL, LEAVE, submit(store(4096)), ALL, ALL),
        "broken_writes": peer(V2_HELLO, [store(64512)] * 6, NEXT, CLOSE, NEXT, CLOSE, NEXT, CLOSE, ALL, ALL),
        "broken_writes_no_token": peer(V2, [store(64512)] * 6, NEXT, CLOSE, NEXT, CLOSE, NEXT, CLOSE, ALL, ALL),
        "silent_for_long": peer(V2_HELLO, mixed, *[time_passes(800)] * 12, ALL, ALL, more=SOON_IDLE),
        "idle": peer(
            V2_HELLO, [read(100)], ALL, ALL, *[time_passes(1000)] * 3, submit(store(100)), ALL, ALL, more=SOON_IDLE
        ),
        "pipe_cut": peer(
            V2_HELLO | DEAF, [store(64512)] * 7, cancel(0), time_passes(400), *[NO_EAR, ALL, ALL] * 2, more=SPLICE
        ),
        "pipe_cut_in_a_body": peer(
            V2_HELLO,
            [store(64512)] * 2,
            ALL,
            NO_EAR,
            *[submit(store(size)) for size in (64512, 4096, 16385, 100, 16385, 40000, 64512, 64512, 64512)],
            CLOSE,
            ALL,
            ALL,
            more=SPLICE,
        ),
        "pipe_cut_in_a_body_no_token": peer(
            V2, [store(64512)] * 2, ALL, NO_EAR, *[submit(store(64512))] * 7, CLOSE, ALL, ALL, more=SPLICE
        ),
        "pipe_and_sums": peer(
            V2_HELLO,
            [store(64512)] * 2,
            ALL,
            NO_EAR,
            *[submit(store(64512))] * 7,
            NO_EAR,
            PEER_WAITS,
            CLOSE,
            ALL,
            more=SPLICE | CHECKSUM,
        ),
        "pipe_later": peer(
            V2 | DEAF, [store(64512)] * 5, submit(store(40000)), *[NO_EAR, ALL, SHUT_EAR, CLOSE, ALL], more=SPLICE
        ),
    }
    for name, data in seeds.items():
        write("tcp_initiator", name, data)


def frame(kind, text, cuts=b"", options=0):
    data = text if isinstance(text, bytes) else text.encode()
    return bytes([options, len(cuts)]) + cuts + struct.pack("<QB", len(data) + 1, kind) + data


NOTE = json.dumps({"name": "a name", "notify_msg": "what there is to say"})


def frames():
    for kind, name in enumerate(("connection", "metadata", "notify", "probe", "unknown")):
        write("frame", name, frame(kind, (NOTE if kind == 2 else "{}") + "\n"))
        write("frame", name + "_cut", frame(kind, NOTE, b"\x01\x07\x01\x03", 1))
    legacy = b'{"local_nic_path":"a","peer_nic_path":"b","qp_num":[1]}\n'
    write("frame", "legacy", b"\0\0" + struct.pack("<Q", len(legacy)) + legacy)
    write("frame", "newline_alone", b"\0\0" + struct.pack("<Q", 1) + b"\n")
    write("frame", "length_0", b"\0\0" + bytes(8))
    write("frame", "length_of_2_63", b"\0\0" + struct.pack("<Q", 1 << 63) + b"\1{}")
    write("frame", "longest", b"\0\0" + struct.pack("<Q", 4096) + b"\1{}")
    write("frame", "longer", b"\0\0" + struct.pack("<Q", 4097) + b"\1{}")
    write("frame", "cut_short", frame(1, "{}\n", b"\3", 1)[:-2])
    write("frame", "two", frame(3, "{}") + frame(3, "{}")[2:])
    write("frame", "not_json", frame(1, "{"))
    write("frame", "http", b"\0\0GET / HTTP/1.1\r\n\r\n")


def descriptors():
    def document(**changes):
        fields = {
            "buffers": [
                {"addr": 4096, "length": 4096, "name": "10.0.0.1:12001"},
                {"addr": 8192, "length": 1, "name": "cpu:0"},
            ],
            "name": "10.0.0.1:12001",
            "protocol": "tcp",
            "tcp_data_port": 15001,
            "tcp_proto_version": 2,
            "timestamp": "2026-01-01 00:00:00.000000",
        }
        fields.update(changes)
        return json.dumps({key: value for key, value in fields.items() if value is not None}, separators=(",", ":"))

    gid = "00:00:00:00:00:00:00:00:00:00:ff:ff:0a:00:00:05"
    keys = [
        {"addr": 4096, "length": 4096, "lkey": [1, 2], "name": "cpu:0", "rkey": [3, 4]},
        {"addr": 8192, "length": 1, "lkey": [5, 6], "name": "*", "rkey": []},
    ]
    rdma = {
        "protocol": "rdma",
        "devices": [{"gid": gid, "lid": 0, "name": name} for name in ("mlx5_0", "mlx5_1")],
        "priority_matrix": {"cpu:0": [["mlx5_0"], ["mlx5_1"]]},
        "rdma_server_name": "10.0.0.5:12001",
    }
    handle = "AB" + "0" * 124 + "CD"
    handles = [
        {"addr": 1 << 20, "length": 1 << 21, "name": "cuda:0", "shm_name": handle},
        {"addr": 1 << 30, "length": 4096, "name": "cpu:0", "shm_name": ""},
    ]
    gpu = {
        "changes": 1,
        "fd": 5,
        "grants": [1048577, 1048578],
        "host": "boot pid",
        "memory": [{"addr": 4096, "device": 0, "handle": handle, "id": 7, "length": 4096}],
        "nonce": "0123456789abcdef" * 2,
        "pid": 77,
    }
    several = [{"addr": 4096, "length": 1, "name": "cpu:0", "protocol": p} for p in ("rdma", "tcp")]
    seeds = {
        "plain": document(),
        "ours": document(lw={"incarnation": "0123456789abcdef", "access": [1, 2]}),
        "v1": document(tcp_proto_version=None),
        "newer": document(tcp_proto_version=7),
        "several_protocols": document(protocol=["rdma", "tcp"], buffers=several),
        "addressless": document(protocol="cxl", buffers=[], tcp_data_port=None),
        "files": document(
            protocol="nvmeof",
            buffers=[
                {"file_path": "/mnt/kv.bin", "length": 1 << 30, "local_path_map": {"node7": "/mnt/te/kv.bin", "x": "/y"}},
                {"file_path": "/dev/nvme0n1", "length": 1},
            ],
            lw={"access": [1, 3]},
            tcp_data_port=None,
        ),
        "files_none": document(protocol="nvmeof", buffers=[], tcp_data_port=None),
        "files_no_path": document(protocol="nvmeof", buffers=[{"length": 1}]),
        "files_odd_map": document(
            protocol="nvmeof", buffers=[{"file_path": "/a", "length": 1, "local_path_map": {"": "", "a": 5}}]
        ),
        "rdma": document(buffers=keys, **rdma),
        "rdma_and_tcp": document(
            **rdma | {"protocol": ["rdma", "tcp"]},
            buffers=[keys[0] | {"protocol": p} for p in ("tcp", "rdma")],
        ),
        "rdma_without_devices": document(buffers=keys, protocol="rdma"),
        "gpu_theirs": document(protocol="nvlink_intra", buffers=handles),
        "gpu_several": document(
            protocol=["hip", "musa"], buffers=[handles[0] | {"protocol": p} for p in ("hip", "musa")]
        ),
        "gpu_ours": document(lw={"device": [1, 0], "nvlink": gpu}),
        "gpu_announced": document(
            protocol="nvlink_intra",
            buffers=[handles[0], {"addr": 1 << 20, "length": 1, "name": "x", "shm_name": ""}],
            lw={"nvlink": gpu},
        ),
        "empty": document(buffers=[]),
        "odd_names": document(
            name='a "quoted" \\ name \u00e9', buffers=[{"addr": 1, "length": 1, "name": "\u20ac" * 40}]
        ),
        "last_address": document(buffers=[{"addr": 9007199254740991, "length": 1, "name": "x"}]),
        "overlap": document(
            buffers=[{"addr": 4096, "length": 4096, "name": "x"}, {"addr": 8191, "length": 1, "name": "y"}]
        ),
        "text_for_number": document(tcp_data_port="15001"),
        "negative": document(buffers=[{"addr": -1, "length": 4096, "name": "x"}]),
        "fraction": document(tcp_data_port=1.5),
        "large_port": document(tcp_data_port=70000),
        "unknown_protocol": document(protocol="pigeon"),
        "nul": document().replace("10.0.0.1", "10\\u0000"),
        "deep": "[" * 20 + "]" * 20,
        "list": "[]",
        "null": "null",
        "cut": document()[:-30],
    }
    for name, data in seeds.items():
        write("descriptor", name, data.encode())


def handshakes():
    fields = {
        "local_gid": "00:00:00:00:00:00:00:00:00:00:ff:ff:0a:00:00:05",
        "local_lid": 0,
        "local_nic_path": "10.0.0.5:15001@mlx5_0",
        "payload": "",
        "peer_nic_path": "10.0.0.6:15002@mlx5_1",
        "qp_num": [312, 313],
        "ready_ack": False,
        "reply_msg": "",
    }
    ours = {"for": "0123456789abcdef", "incarnation": "fedcba9876543210", "over": True}
    for name, changes in (("plain", {}), ("ours", {"lw": ours}), ("refusal", {"qp_num": [], "reply_msg": "no"})):
        write("contact", "handshake_" + name, json.dumps(fields | changes, separators=(",", ":")).encode())


def hostports():
    names = {
        "host": "node-1.example.org",
        "host_port": "node-1:12001",
        "v4": "10.0.0.1:15000",
        "v6": "2001:db8::1",
        "brackets": "[2001:db8::1]",
        "brackets_port": "[2001:db8::1]:12001",
        "tail_like_a_port": "2001:db8:0:0:0:0:0:12001",
        "scope": "fe80::1%eth0",
        "scope_port": "[fe80::1%eth0]:80",
        "scope_bare_port": "fe80::1%2:80",
        "mapped": "[::ffff:10.0.0.1]:65535",
        "empty_scope": "fe80::1%",
        "port_0": "a:0",
        "port_large": "a:65536",
        "port_sign": "a:+1",
        "open": "[::1",
        "junk_behind": "[::1]x",
        "brackets_twice": "[[::1]]",
        "long": "a" * 255,
        "longer": "a" * 256,
        "long_port": "a" * 249 + ":65535",
    }
    for name, text in names.items():
        write("hostport", name, b"\2" + text.encode())


def matrices():
    both = '{"cpu:0":[["mlx5_0"],["mlx5_1"]],"cpu:1":[["mlx5_1"],["mlx5_0"]]}'
    texts = {
        "null": "null",
        "empty": "{}",
        "both": both,
        "blanks": both.replace(",", " ,\n"),
        "twice": '{"cpu:0":[["a","a"],["a"]]}',
        "location_twice": '{"cpu:0":[[],[]],"cpu:0":[[],[]]}',
        "three_lists": '{"cpu:0":[[],[],[]]}',
        "object": '{"cpu:0":{"a":[],"b":[]}}',
        "number": '{"cpu:0":[[1],[]]}',
        "nul": '{"cpu:0":[["a\\u0000b"],[]]}',
        "escapes": '{"\\u00e4\\n":[["\\"/\\\\"],[]]}',
        "cut": both[:-7],
        "more": both + "}",
        "deep": "[" * 2000,
        "devices": '{"cpu:0":[[' + ",".join(f'"d{i}"' for i in range(257)) + "],[]]}",
        "long": '{"' + "l" * 64 + '":[[],[]]}',
        "any": "*",
        "cpu": "cpu:12",
        "cuda": "cuda:4294967295",
        "parts": "segments:4096:0,1,0",
        "parts_many": "segments:2097152:" + ",".join("7" * 65),
        "parts_open": "segments:4096:0,",
    }
    for name, text in texts.items():
        write("matrix", name, text.encode())


def settings():
    scripts = {
        "nothing": "",
        "file": "F# a comment\nF\nFworkers = 2\nF poll=caller \nFidle_us = 0",
        "file_unknown": "Fworker = 2",
        "file_no_value": "Fworkers",
        "file_twice": "Fworkers = 2\nFworkers = 3",
        "file_section": "F[lanewise]\nFworkers = 2",
        "file_crlf": "Fworkers = 2\r\nFpoll = busy\r",
        "file_nul": "Fworkers = 2\0 3\nFpoll = busy",
        "file_long": "Ftopology = " + "x" * 17000,
        "environment": "ELW_WORKERS=2\nELW_POLL=busy\nELW_TCP_SECRET=a secret text",
        "environment_wrong": "ELW_WORKERS=8x\nELW_WORKER=2\nELW_workers=2\nELW_STORE_PASSWORD=" + "secret" * 60,
        "mooncake": "EMC_TCP_BIND_ADDRESS=127.0.0.1\nEMC_FORCE_TCP=1\nEMC_METADATA_CLUSTER_ID=a\nEMC_REDIS_PASSWORD=opensesame",
        "mooncake_wrong": "EMC_SLICE_SIZE=-1\nEMC_SLICE_SIZ=1\nEMC_REDIS_DB_INDEX=256\nEMC_MIN_PRC_PORT=9\nEMC_MAX_PRC_PORT=1",
        "program": "Sworkers=2\nSpoll=caller\nSdrivers=tcp\nStcp_checksum=on",
        "program_wrong": "Sworkers=65",
        "program_unknown": "Sworkerz=1",
        "program_secret": "Stcp_secret=words of one\nSstore_token=abcdefgh",
        "program_secret_long": "Stcp_secret=" + "words of one" * 30,
        "all": "Fworkers = 2\nELW_WORKERS=3\nEMC_NUM_QP_PER_EP=2\nSworkers=4",
        "ports": "Fport_min = 2000\nELW_PORT_MAX=1999",
        "ports_program": "Sport_min=2000\nSport_max=1999",
        "numbers": "\n".join(f"ELW_WORKERS={text}" for text in (" 8", "8 ", "+8", "0x8", "1e1", str(2**70), "\u0668")),
        "drivers": "Dtcp,null",
        "drivers_empty": "D",
        "drivers_commas": "D,,tcp,",
        "drivers_unknown": "Dtcp,rdmax",
        "drivers_blank": "Dtcp, null",
        "drivers_long": "D" + "tcp," * 70,
    }
    for name, text in scripts.items():
        write("settings", name, text.encode())


def stores():
    urls = {
        "p2p": "P2PHANDSHAKE",
        "p2p_small": "p2phandshake",
        "etcd": "etcd://10.0.0.1:2379,10.0.0.2:2379",
        "etcd_default": "etcd://a,b:1,[::1]",
        "etcd_bare": "10.0.0.1:2379;10.0.0.2:2379",
        "etcd_empty": "etcd://a,,b",
        "etcd_many": "etcd://" + ",".join(f"h{i}:1" for i in range(100)),
        "redis": "redis://h:6379",
        "redis_user": "redis://user:word@h:6379/2",
        "redis_v6": "redis://[fe80::1%2]:6379",
        "http": "http://h:8080/metadata",
        "http_query": "http://h/metadata?a=b#c",
        "http_user": "http://user:word@h/metadata",
        "https": "https://h/",
        "http_no_host": "http:///metadata",
        "scheme": "zookeeper://h:1",
        "scheme_large": "HTTP://h/",
        "scheme_none": "://h",
        "control": "http://h/\x01\x7f\n",
        "port": "redis://h:65536",
        "long": "http://" + "h" * 580,
    }
    for number, (name, text) in enumerate(urls.items()):
        write("store", name, bytes([number % 16]) + text.encode())


if __name__ == "__main__":
    tcp_target()
    tcp_initiator()
    frames()
    descriptors()
    handshakes()
    hostports()
    matrices()
    settings()
    stores()
