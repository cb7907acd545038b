// SPDX-License-Identifier: Apache-2.0
// launcher/nodes.h — nodes of op-trees, and what an operand is
//
// A node keeps its operands in itself; Python sees them as a tuple, `inputs`. Nodes are kept for reuse, and deep trees are
// freed without recursion: see node_free.
#ifndef TB_LAUNCHER_NODES_H
#define TB_LAUNCHER_NODES_H

#include "python.h"

#ifdef __SANITIZE_ADDRESS__
enum { SPARE_NODES = 0 };  // who uses a node that is freed is found
#else
enum { SPARE_NODES = 256 };
#endif
enum { OPERANDS = 3 };

// What a node holds behind the slots of OpTreeNode.
typedef struct extra {
    object *operand[OPERANDS];
    length count;
    object *next;  // of the nodes waiting to be freed, or of the spare ones
} extra;

static inline extra *extra_of(object *node) { return (extra *)((char *)node + at.node_size); }

static object *spare;
static int spares;

static object *node_new(object *structure, object *const *operands, int count) {
    object *node = spare;
    Py_IncRef(structure);  // before memory is taken: up to Python 3.11 that collects garbage, and a memo may forget it
    if (node) {
        spare = extra_of(node)->next;
        spares--;
        PyObject_Init(node, node_type);
    } else {
        node = PyType_GenericAlloc(node_type, 0);
        if (!node) {
            Py_DecRef(structure);
            return NULL;
        }
        PyObject_GC_UnTrack(node);
    }
    *field(node, at.node_structure) = structure;
    extra *e = extra_of(node);
    for (int i = 0; i < count; i++)
        e->operand[i] = kept(operands[i]);
    e->count = count;
    e->next = NULL;
    PyObject_GC_Track(node);
    return node;
}

static void clear_field(object **place) {
    object *x = *place;
    *place = NULL;
    drop(x);
}

// A node that goes with the one holding it is put on a list by its own deallocation, which the drop below calls with
// nothing in between, and freed after its holder: chains of any length need no stack.
static int collecting;
static object *waiting;

static void drop_operand(object **place, object **list) {
    object *x = *place;
    *place = NULL;
    if (!x)
        return;
    if (x->type != node_type) {
        Py_DecRef(x);
        return;
    }
    collecting = 1;
    Py_DecRef(x);
    collecting = 0;
    if (waiting) {
        extra_of(waiting)->next = *list;
        *list = waiting;
        waiting = NULL;
    }
}

static void give_memory_back(object *node) {
    if (spares < SPARE_NODES) {
        extra_of(node)->next = spare;
        spare = node;
        spares++;
    } else {
        PyObject_GC_Del(node);
    }
    Py_DecRef(node_type);
}

static void node_free(object *self) {
    PyObject_GC_UnTrack(self);
    if (collecting) {
        collecting = 0;
        waiting = self;
        return;
    }
    extra_of(self)->next = NULL;
    for (object *list = self, *node; (node = list);) {
        extra *e = extra_of(node);
        list = e->next;
        PyObject_ClearWeakRefs(node);
        for (int i = 0; i < OPERANDS; i++)
            drop_operand(&e->operand[i], &list);
        clear_field(field(node, at.node_structure));
        clear_field(field(node, at.node_inputs));
        clear_field(field(node, at.node_draw));
        give_memory_back(node);
    }
}

static int visit_all(object **places, int count, visitor visit, void *argument) {
    for (int i = 0; i < count; i++) {
        int stop = places[i] ? visit(places[i], argument) : 0;
        if (stop)
            return stop;
    }
    return 0;
}

static int node_traverse(object *self, visitor visit, void *argument) {
    extra *e = extra_of(self);
    object *all[OPERANDS + 4] = {self->type, slot(self, at.node_structure), slot(self, at.node_inputs),
                                 slot(self, at.node_draw)};
    memcpy(all + 4, e->operand, sizeof e->operand);
    return visit_all(all, OPERANDS + 4, visit, argument);
}

static int node_clear(object *self) {
    for (int i = 0; i < OPERANDS; i++)
        clear_field(&extra_of(self)->operand[i]);
    extra_of(self)->count = 0;
    clear_field(field(self, at.node_inputs));
    clear_field(field(self, at.node_draw));
    return 0;
}

static object *get_inputs(object *self, void *closure) {
    extra *e = extra_of(self);
    object *all = PyTuple_New(e->count);
    for (length i = 0; all && i < e->count; i++)
        PyTuple_SetItem(all, i, kept(e->operand[i]));
    return all;
}

// What an object is ---------------------------------------------------------------------------------------------------

enum kind { NUMBER, NODE, PLAIN_NODE, TENSOR, FOREIGN };

static enum kind kind_of_other(object *type) {
    if (PyType_IsSubtype(type, py.node_class))
        return PLAIN_NODE;
    if (PyType_IsSubtype(type, py.tensor_class))
        return TENSOR;
    if (PyType_IsSubtype(type, py.float_) || PyType_IsSubtype(type, py.int_) || PyType_IsSubtype(type, py.generic))
        return NUMBER;
    return FOREIGN;
}

// Whether its class is one of those that backends have, and no class of a user's.
static inline int is_own_tensor(const object *x) {
    for (int i = 0; i < n_tensor_types; i++)
        if (x->type == tensor_types[i])
            return 1;
    return 0;
}

static inline enum kind kind_of(object *x) {
    object *type = x->type;
    if (type == node_type)
        return NODE;
    if (is_own_tensor(x))
        return TENSOR;
    if (type == py.float_ || type == py.int_)
        return NUMBER;
    return kind_of_other(type);
}

static inline object *structure_of(object *x, enum kind kind) {
    return slot(x, kind == TENSOR ? at.tensor_structure : at.node_structure);
}

// The structure of a tensor or node, the type of a number, NULL for anything else. Borrowed.
static inline object *key_of(object *x) {
    enum kind kind = kind_of(x);
    return kind == NUMBER ? x->type : kind == FOREIGN ? NULL : structure_of(x, kind);
}

static inline const void *data_of(object *bytes) { return (const char *)bytes + at.bytes_data; }

#endif
