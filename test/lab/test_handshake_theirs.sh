#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A peer of the reference's kind begins the queue pair handshake with our engine.
exec bash test/lab/handshake.sh TheyAsk
