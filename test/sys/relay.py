# SPDX-License-Identifier: Apache-2.0
"""A middlebox for the tests beside: relays connections to a port, late if asked to, ends those that are idle, and spoils
what passes at a byte that the test names."""

import asyncio
import random
import socket
import struct
import threading
import time

FIN, RST, SILENCE = "FIN", "RST", "silence"
THERE, BACK = "there", "back"  # towards the target, and from it
FLIP, CUT, END, HALF = "flip", "cut", "end", "half"
STALL_LOOK_S = 0.005


class Deed:
    """What happens to the byte of that direction which comes after so many others, counted over all connections from now on.

    FLIP: one bit of it is changed. CUT: both ends are reset. END: both get a FIN. HALF: the side that it was meant for
    gets a FIN, this byte and all behind it are thrown away, and the other direction goes on.
    """

    def __init__(self, what, direction, after, bit=0, always=False):
        self.what, self.direction, self.after, self.bit = what, direction, after, bit
        self.left = after
        self.always = always  # on each connection anew, counted from its begin
        self.done = 0


class Relay:
    """127.0.0.1:port leads to 127.0.0.1:target.

    A connection that was idle for idle seconds ends as how says: with FIN, with RST, or in silence: both ends keep
    theirs, what they send is confirmed and thrown away. late: each piece is held back for up to so many seconds, in
    order. To be changed at any time: stalled: nothing moves while it is true; drip: (bytes, seconds), no more than that
    at a time; deed: see there.
    """

    def __init__(self, target, idle=None, how=FIN, late=0, seed=0):
        self.target, self.idle, self.how, self.late = target, idle, how, late
        self.random = random.Random(seed)
        self.stalled = False
        self.drip = None
        self.deed = None
        self.ended = 0  # because they were idle
        self.accepted = 0
        self.passed = {THERE: 0, BACK: 0}  # bytes
        self.tasks = set()
        self.loop = asyncio.new_event_loop()
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=256)
        self.port = self.listener.getsockname()[1]
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self):
        asyncio.set_event_loop(self.loop)
        self.server = self.loop.run_until_complete(asyncio.start_server(self._serve, sock=self.listener))
        self.loop.run_forever()
        self.server.close()
        for task in asyncio.all_tasks(self.loop):
            task.cancel()
        self.loop.run_until_complete(asyncio.sleep(0.05))
        self.loop.close()

    async def _serve(self, reader, writer):
        task = asyncio.current_task()
        self.tasks.add(task)  # the loop's own references are weak
        task.add_done_callback(self.tasks.discard)
        self.accepted += 1
        try:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self.target)
        except OSError:
            writer.transport.abort()
            return
        ends = (writer, far_writer)
        for end in ends:
            end.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        state = {"used": time.monotonic(), "forgotten": False, "how": self.how, THERE: 0, BACK: 0}
        pumps = [
            self.loop.create_task(self._pump(reader, far_writer, state, THERE)),
            self.loop.create_task(self._pump(far_reader, writer, state, BACK)),
        ]
        try:
            state["pumps"] = pumps
            while not all(pump.done() for pump in pumps):
                left = None
                if self.idle and not state["forgotten"]:
                    left = state["used"] + self.idle - time.monotonic()
                    if left <= 0:
                        self.ended += 1
                        if self.how == SILENCE:
                            state["forgotten"] = True
                            continue
                        break
                await asyncio.wait(pumps, timeout=left)
        except asyncio.CancelledError:
            pass
        finally:
            for pump in pumps:
                pump.cancel()
            for end in ends:
                self._end(end, state["how"])

    def _end(self, writer, how):
        if how == RST:
            linger = struct.pack("ii", 1, 0)
            try:
                writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            except OSError:
                pass
            writer.transport.abort()
        else:
            writer.close()

    def _due(self, data, state, direction):
        """Where in data the deed is to be done; None: not there."""
        deed = self.deed
        before = state[direction]
        state[direction] += len(data)
        if deed is None or deed.direction != direction:
            return None
        if deed.always:
            at = deed.after - before
            return at if 0 <= at < len(data) else None
        at = deed.left
        deed.left -= len(data)
        if at >= len(data):
            return None
        self.deed = None
        return at

    async def _send(self, writer, data, direction):
        step = self.drip[0] if self.drip else max(len(data), 1)
        for i in range(0, len(data), step):
            while self.stalled:
                await asyncio.sleep(STALL_LOOK_S)
            if self.drip:
                await asyncio.sleep(self.drip[1])
            writer.write(data[i : i + step])
            self.passed[direction] += len(data[i : i + step])
            await writer.drain()

    async def _pump(self, reader, writer, state, direction):
        try:
            while data := await reader.read(1 << 16):
                if state["forgotten"]:
                    continue
                state["used"] = time.monotonic()
                if self.late:
                    await asyncio.sleep(self.random.uniform(0, self.late))
                deed = self.deed
                at = self._due(data, state, direction)
                if at is not None:
                    deed.done += 1
                    if deed.what == FLIP:
                        data = data[:at] + bytes([data[at] ^ 1 << deed.bit]) + data[at + 1 :]
                    else:
                        await self._send(writer, data[:at], direction)
                        if deed.what != HALF:
                            state["how"] = RST if deed.what == CUT else FIN
                            for pump in state["pumps"]:
                                if pump is not asyncio.current_task():
                                    pump.cancel()
                            return
                        writer.write_eof()
                        while await reader.read(1 << 16):
                            pass
                        return
                await self._send(writer, data, direction)
            if not state["forgotten"]:
                writer.write_eof()
        except OSError:
            writer.transport.abort()

    def close(self):
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
