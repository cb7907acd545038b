// SPDX-License-Identifier: Apache-2.0
// launcher/calls.h — calls of primitives (`be.compound_fprop_bn(...)`) that have come before
//
// The form of a call says all that its checks and launches depend on: the method, structures of tensors and which of
// these are the same view, numbers by value, layers by identity, names of arguments. Python runs a form first; when it
// has come RUNS times, Python also notes what it launches (backends/calls.py): a recipe, whose leaves are the tensors,
// then the numbers of its launches. From then on the form is launched here, unchecked and without Python. Calls inside
// a `fuse` block, and those whose tensors overlap in part, are read-only or round, are Python's.
#ifndef TB_LAUNCHER_CALLS_H
#define TB_LAUNCHER_CALLS_H

#include "groups.h"

enum { RUNS = 2, MOST_ARGUMENTS = 40, MOST_CALL_WORDS = 2 + 6 * MOST_ARGUMENTS };
enum { OBJECT_ARGUMENT, TENSOR_ARGUMENT, INTEGER_ARGUMENT, FLOAT_ARGUMENT, SAME_VIEW };

typedef struct call_form {
    int64_t key[MOST_CALL_WORDS], words;
    object *object[2 * MOST_ARGUMENTS + 1];  // those in the key
    length objects;
    span place[MOST_ARGUMENTS];  // of the tensors
    object *structure[MOST_ARGUMENTS];
    int tensors;
} call_form;

static inline void add_words(call_form *c, int64_t what, int64_t value) {
    c->key[c->words++] = what;
    c->key[c->words++] = value;
}

static inline void add_object(call_form *c, int what, object *x) {
    add_words(c, what, (int64_t)(uintptr_t)x);
    c->object[c->objects++] = x;
}

static int add_tensor(call_form *c, object *x, const memo *m) {
    object *structure = slot(x, at.tensor_structure);
    const span *where = span_of(x);
    if (!where || !is_plain_target(x) || memo_of(structure) != m)
        return 0;
    add_object(c, TENSOR_ARGUMENT, structure);
    int same = -1;
    for (int i = 0; i < c->tensors; i++) {
        const span *other = &c->place[i];
        if (!share_memory(other, c->structure[i], where, structure))
            continue;
        if (other->address != where->address || c->structure[i] != structure)
            return 0;
        same = i;
    }
    if (same >= 0)
        add_words(c, SAME_VIEW, same);
    c->structure[c->tensors] = structure;
    c->place[c->tensors++] = *where;
    return 1;
}

static int is_fixed(const object *x) {
    for (size_t i = 0; i < sizeof py.fixed / sizeof *py.fixed; i++)
        if (x->type == py.fixed[i])
            return 1;
    return x == py.none || x == py.true_ || x == py.false_;
}

// 0 for an argument that only Python understands.
static int add_argument(call_form *c, object *x, const memo *m) {
    int64_t word;
    if (is_fixed(x)) {
        add_object(c, OBJECT_ARGUMENT, x);
    } else if (x->type == py.float_) {
        double value = PyFloat_AsDouble(x);
        memcpy(&word, &value, sizeof word);
        add_words(c, FLOAT_ARGUMENT, word);
    } else if (x->type == py.int_) {
        int over;
        word = PyLong_AsLongLongAndOverflow(x, &over);
        add_words(c, INTEGER_ARGUMENT, word);
        return !over;
    } else {
        return kind_of(x) == TENSOR && add_tensor(c, x, m);
    }
    return 1;
}

// 0 for a call that only Python can run.
static int read_call(call_form *c, const method *f, object *const *arguments, length by_place, object *names) {
    const memo *m = (memo *)f->memo;
    length all = by_place + (names ? PyTuple_Size(names) : 0);
    if (m->aside || all > MOST_ARGUMENTS || (m->fusing && own_fusing(m)))
        return 0;
    c->words = c->objects = c->tensors = 0;
    add_object(c, by_place, f->op);
    for (length i = 0; i < all; i++) {
        if (i >= by_place)
            add_object(c, OBJECT_ARGUMENT, PyTuple_GetItem(names, i - by_place));
        if (!add_argument(c, arguments[i], m))
            return 0;
    }
    return 1;
}

// Runs a call in Python, and remembers how to run its like.
static object *learn_call(memo *m, const method *f, object *const *arguments, length by_place, object *names,
                          const call_form *c) {
    object *all, *named, *found = NULL;
    const long long forgotten = m->forgotten;
    Py_IncRef(&m->head);
    if (as_objects(arguments, by_place, names, &all, &named))
        found = PyObject_CallFunctionObjArgs(py.learn_call, f->python, all, named ? named : py.none, NULL);
    object *result = found ? kept(PyTuple_GetItem(found, 0)) : NULL;
    object *recipe = found ? PyTuple_GetItem(found, 1) : NULL;
    int lasts = recipe && recipe != py.not_implemented && m->forgotten == forgotten;
    called *known = lasts ? entry_of_call(m, c->key, c->words, c->object, c->objects) : NULL;
    if (known && !known->recipe)
        known->recipe = kept(recipe);
    drop(found);
    drop(all);
    drop(named);
    Py_DecRef(&m->head);
    return result;
}

static enum outcome follow_call(memo *m, object *recipe, const call_form *c) {
    object *leaf[MOST_ARGUMENTS + MOST_SCALARS] = {NULL}, *numbers = PyTuple_GetItem(recipe, 2);
    length count = PyTuple_Size(numbers);
    for (length i = 0; i < count; i++)
        leaf[c->tensors + i] = PyTuple_GetItem(numbers, i);
    const operands o = {leaf, c->place, NULL};
    return follow(m, recipe, &o);
}

// The argument that a call gives back, or None.
static object *returned(object *recipe, object *const *arguments) {
    int64_t number = PyLong_AsLongLong(PyTuple_GetItem(recipe, 3));
    return number < 0 ? py.none : arguments[number];
}

static object *call_again(object *self, object *const *arguments, size_t count, object *names) {
    const method *f = (const method *)self;
    memo *m = (memo *)f->memo;
    length by_place = (length)(count & ARGUMENT_COUNT);
    call_form c;
    if (!read_call(&c, f, arguments, by_place, names))
        return call_python(f->python, arguments, by_place, names);
    called *known = entry_of_call(m, c.key, c.words, c.object, c.objects);
    if (known && !known->recipe && known->runs++ >= RUNS)
        return learn_call(m, f, arguments, by_place, names, &c);
    int repeats = known && known->recipe && known->recipe != py.none;
    object *result = repeats ? returned(known->recipe, arguments) : NULL;  // now: others may forget the call meanwhile
    enum outcome outcome = repeats ? follow_call(m, known->recipe, &c) : TO_PYTHON;
    if (outcome == TO_PYTHON)
        return call_python(f->python, arguments, by_place, names);
    return outcome == DONE ? kept(result) : NULL;
}

#endif
