// SPDX-License-Identifier: Apache-2.0
// turn.h — tiles of an operand that lies across, turned so that they lie along: to[r][a] = from[a][r]
//
// `lines` lines a of `rows` numbers r each; lines lie `step` numbers apart, those of the result `pitch`. The functions are
// in turn.c, which is a library of its own: to compile them takes longer than most of the kernels that call them.
#ifndef TB_TURN_H
#define TB_TURN_H

#include "vmath.h"

// What is moved and not looked at, of whatever type.
typedef tb_u8 tb_any1 __attribute__((may_alias));
typedef tb_u16 tb_any2 __attribute__((may_alias));
typedef tb_u32 tb_any4 __attribute__((may_alias));
typedef tb_u64 tb_any8 __attribute__((may_alias));

// Of numbers of 1, 2, 4 and 8 bytes.
void tb_turn1(const void *from, tb_i64 step, int lines, int rows, void *to, tb_i64 pitch);
void tb_turn2(const void *from, tb_i64 step, int lines, int rows, void *to, tb_i64 pitch);
void tb_turn4(const void *from, tb_i64 step, int lines, int rows, void *to, tb_i64 pitch);
void tb_turn8(const void *from, tb_i64 step, int lines, int rows, void *to, tb_i64 pitch);

#endif
