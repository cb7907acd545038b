// SPDX-License-Identifier: Apache-2.0
// launcher/views.h — views of tensors (`t[key]`, `t.T`, `t.reshape(...)`) like those that have been made before
//
// The structure of a tensor and the key, whose integers count by value, say what the view's structure is and how far its
// first element lies from the tensor's. Python makes the first view of a key; from then on it is made here. Views share
// the table of calls (calls.h), whose keys begin with a number of arguments, where theirs begin with a number below 0.
#ifndef TB_LAUNCHER_VIEWS_H
#define TB_LAUNCHER_VIEWS_H

#include "statements.h"

enum { MOST_PARTS_OF_KEY = 16, MOST_VIEW_WORDS = 2 + 4 * MOST_PARTS_OF_KEY };
enum { BY_INDEX = -1, BY_TURNING = -2, BY_SHAPE = -3 };
enum { INTEGER_PART, NEW_AXIS_PART, ELLIPSIS_PART, SLICE_PART = 8 };  // and a bit for each end that a slice has

typedef struct view_key {
    int64_t word[MOST_VIEW_WORDS], words;
} view_key;

static inline int add_integer(view_key *k, object *x) {
    int over;
    if (x->type != py.int_)
        return 0;
    k->word[k->words++] = PyLong_AsLongLongAndOverflow(x, &over);
    return !over;
}

// 0 for a part of an index that only Python understands.
static int add_part(view_key *k, object *x) {
    int64_t *what = &k->word[k->words++];
    if (x->type == py.slice) {
        object **ends = field(x, at.slice_start);
        *what = SLICE_PART;
        for (int i = 0; i < 3; i++) {
            if (ends[i] == py.none)
                continue;
            *what |= 1 << i;
            if (!add_integer(k, ends[i]))
                return 0;
        }
        return 1;
    }
    *what = x == py.none ? NEW_AXIS_PART : x == py.ellipsis ? ELLIPSIS_PART : INTEGER_PART;
    return *what != INTEGER_PART || add_integer(k, x);
}

static int read_index(view_key *k, object *key) {
    if (key->type != py.tuple)
        return add_part(k, key);
    length parts = PyTuple_Size(key);
    if (parts > MOST_PARTS_OF_KEY)
        return 0;
    for (length i = 0; i < parts; i++)
        if (!add_part(k, PyTuple_GetItem(key, i)))
            return 0;
    return 1;
}

static inline view_key view_key_of(object *tensor, int how) {
    return (view_key){{how, (int64_t)(uintptr_t)slot(tensor, at.tensor_structure)}, 2};
}

// The memo of a tensor whose views may be made here.
static memo *memo_for_views(object *tensor) {
    return is_own_tensor(tensor) ? memo_of(slot(tensor, at.tensor_structure)) : NULL;
}

// What Tensor._place sets, and the base, of a tensor that was made just now.
static void place_tensor(object *tensor, object *structure, object *base, span place) {
    *field(tensor, at.tensor_structure) = kept(structure);
    *field(tensor, at.tensor_base) = kept(base);
    *field(tensor, at.tensor_array) = kept(py.none);
    *field(tensor, at.tensor_address) = PyLong_FromLongLong(place.address);
    *field(tensor, at.tensor_start) = PyLong_FromLongLong(place.start);
    *field(tensor, at.tensor_stop) = PyLong_FromLongLong(place.stop);
    *field(tensor, at.tensor_span) = PyBytes_FromStringAndSize((const char *)&place, sizeof place);
}

// As Tensor._view. NULL without an exception when only Python can make it.
static object *view_like(object *tensor, object *structure, const int64_t *offset_low_high) {
    const span *where = span_of(tensor);
    length same[] = {at.tensor_storage, at.tensor_rounding, at.tensor_name, at.tensor_persist_values};
    for (int i = 0; i < 4; i++)
        if (!where || !slot(tensor, same[i]))
            return NULL;
    int64_t address = where->address + offset_low_high[0];
    object *view = PyType_GenericAlloc(tensor->type, 0);
    if (!view)
        return NULL;
    for (int i = 0; i < 4; i++)
        *field(view, same[i]) = kept(slot(tensor, same[i]));
    place_tensor(view, structure, tensor, (span){address, address + offset_low_high[1], address + offset_low_high[2]});
    if (PyErr_Occurred())
        clear_field(&view);
    return view;
}

// memo.look(values, views) appends the views of graph/templates.py to a list: of each where in the list its tensor is, the
// structure, and the distance and extent in bytes as three words. False when Python must make them.
static object *memo_look(object *self, object *const *arguments, length given) {
    (void)self;
    length total = given == 2 ? PyTuple_Size(arguments[1]) : -1;
    for (length i = 0; i < total; i++) {
        object *entry = PyTuple_GetItem(arguments[1], i);
        object *tensor = PyList_GetItem(arguments[0], PyLong_AsLongLong(PyTuple_GetItem(entry, 0)));
        object *structure = PyTuple_GetItem(entry, 1), *words = PyTuple_GetItem(entry, 2);
        object *view = tensor && words && is_own_tensor(tensor) ? view_like(tensor, structure, data_of(words)) : NULL;
        if (!view)
            return PyErr_Occurred() ? NULL : kept(py.false_);
        int failed = PyList_Append(arguments[0], view) < 0;
        Py_DecRef(view);
        if (failed)
            return NULL;
    }
    return total < 0 ? NULL : kept(py.true_);
}

// The view that a key names, if one like it has been made before; else NULL, with an exception or without.
static object *known_view(object *tensor, const view_key *k) {
    memo *m = memo_for_views(tensor);
    called *found = m && m->n_calls ? find_call(m->calls, m->call_places, k->word, k->words) : NULL;
    if (!found || !found->key || !found->recipe)
        return NULL;
    if (found->recipe == py.true_)
        return kept(tensor);
    object *recipe = kept(found->recipe);  // taking memory may collect garbage, and the memo forget it
    object *view = view_like(tensor, PyTuple_GetItem(recipe, 0), data_of(PyTuple_GetItem(recipe, 1)));
    Py_DecRef(recipe);
    return view;
}

// Remembers how Python made a view, and hands it on.
static object *learn_view(object *tensor, const view_key *k, object *made) {
    memo *m = made ? memo_for_views(tensor) : NULL;
    if (!m)
        return made;
    Py_IncRef(&m->head);
    object *recipe = PyObject_CallFunctionObjArgs(py.learn_view, tensor, made, NULL);
    object *structure = slot(tensor, at.tensor_structure);
    called *entry = recipe && recipe != py.none ? entry_of_call(m, k->word, k->words, &structure, 1) : NULL;
    if (entry && !entry->recipe)
        entry->recipe = kept(recipe);
    if (!recipe)
        clear_field(&made);
    drop(recipe);
    Py_DecRef(&m->head);
    return made;
}

// A view by a key that is understood (`known`) or not: made here, or by a function of Python's of these arguments.
static object *view_by(object *tensor, const view_key *k, int known, object *python, object *const *arguments,
                       length count) {
    object *view = known ? known_view(tensor, k) : NULL;
    if (view || PyErr_Occurred())
        return view;
    object *all = PyTuple_New(count + 1);
    for (length i = 0; all && i <= count; i++)
        PyTuple_SetItem(all, i, kept(i ? arguments[i - 1] : tensor));
    object *made = all ? PyObject_Call(python, all, NULL) : NULL;
    drop(all);
    return known ? learn_view(tensor, k, made) : made;
}

static inline int is_whole(object *key) {
    if (key->type != py.slice)
        return 0;
    object **parts = field(key, at.slice_start);
    return parts[0] == py.none && parts[1] == py.none && parts[2] == py.none;
}

static object *get_item(object *self, object *key) {
    if (is_whole(key))
        return kept(self);
    view_key k = view_key_of(self, BY_INDEX);
    int known = read_index(&k, key);
    return view_by(self, &k, known, py.getitem, &key, 1);
}

// The view that `self[key] = ...` writes to, if one like it has been made before.
static object *known_item(object *self, object *key) {
    view_key k = view_key_of(self, BY_INDEX);
    return read_index(&k, key) ? known_view(self, &k) : NULL;
}

static object *get_turned(object *self, void *closure) {
    view_key k = view_key_of(self, BY_TURNING);
    return view_by(self, &k, 1, py.turned, NULL, 0);
}

static object *reshape(object *self, object *const *arguments, length count) {
    view_key k = view_key_of(self, BY_SHAPE);
    int in_tuple = count == 1 && arguments[0]->type == py.tuple;
    length axes = in_tuple ? PyTuple_Size(arguments[0]) : count;
    int known = axes <= MOST_PARTS_OF_KEY;
    for (length i = 0; known && i < axes; i++)
        known = add_integer(&k, in_tuple ? PyTuple_GetItem(arguments[0], i) : arguments[i]);
    return view_by(self, &k, known, py.reshape, arguments, count);
}

#endif
