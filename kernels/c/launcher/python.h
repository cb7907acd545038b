// SPDX-License-Identifier: Apache-2.0
// launcher/python.h — the part of Python's ABI that the launcher uses, and what launcher.py tells it at start-up
//
// Only functions of the stable ABI, declared by hand: no header of Python's is needed. Where slots of Python's objects
// lie is found out by launcher.py.
#ifndef TB_LAUNCHER_PYTHON_H
#define TB_LAUNCHER_PYTHON_H

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "../runtime.h"

typedef ptrdiff_t length;

typedef struct object {
    length references;
    struct object *type;
} object;

typedef int (*visitor)(object *, void *);
typedef struct { const char *name; object *(*call)(object *, object *); int flags; const char *doc; } method_def;
typedef struct { const char *name; object *(*get)(object *, void *); int (*set)(object *, object *, void *);
                 const char *doc; void *closure; } getset_def;
typedef struct { const char *name; int type; length offset; int flags; const char *doc; } member_def;
typedef struct { int slot; void *value; } type_slot;
typedef struct { const char *name; int basicsize, itemsize; unsigned flags; type_slot *slots; } type_spec;

enum { BASE_TYPE = 1 << 10, VECTORCALL = 1 << 11, COLLECTED = 1 << 14 };
enum { ANY_ARGUMENTS = 1, NO_ARGUMENTS = 4, ONE_ARGUMENT = 8, FAST = 128, MEMBER_LENGTH = 19, MEMBER_READ_ONLY = 1 };
static const size_t ARGUMENT_COUNT = SIZE_MAX >> 1;  // less the flag that a caller of a vectorcall may set
enum { MP_ASS_SUBSCRIPT = 3, MP_SUBSCRIPT = 5, NB_ABSOLUTE = 6, NB_ADD, NB_AND, NB_FLOOR_DIVIDE = 12, NB_INVERT = 27, NB_LSHIFT, NB_MULTIPLY,
       NB_NEGATIVE, NB_OR, NB_POWER = 33, NB_REMAINDER, NB_RSHIFT, NB_SUBTRACT, NB_TRUE_DIVIDE, NB_XOR,
       TP_CALL = 50, TP_CLEAR, TP_DEALLOC, TP_GETATTRO = 58, TP_HASH, TP_METHODS = 64, TP_RICHCOMPARE = 67,
       TP_TRAVERSE = 71, TP_MEMBERS, TP_GETSET, NB_MATRIX_MULTIPLY = 75 };

extern void Py_IncRef(object *), Py_DecRef(object *);
extern object *PyObject_Init(object *, object *), *PyType_GenericAlloc(object *, length);
extern void PyObject_GC_Track(void *), PyObject_GC_UnTrack(void *), PyObject_GC_Del(void *);
extern void PyObject_Free(void *);
extern void PyObject_ClearWeakRefs(object *);
extern object *PyType_FromSpecWithBases(type_spec *, object *);
extern int PyType_IsSubtype(object *, object *);
extern object *PyTuple_New(length), *PyTuple_GetItem(object *, length);
extern int PyTuple_SetItem(object *, length, object *);
extern length PyTuple_Size(object *);
extern object *PyDict_GetItemString(object *, const char *), *PyList_GetItem(object *, length);
extern int PyList_Append(object *, object *);
extern length PyList_Size(object *);
extern object *PyObject_CallFunctionObjArgs(object *, ...), *PyObject_GetAttr(object *, object *);
extern int PyObject_SetAttr(object *, object *, object *);
extern object *PyWeakref_NewRef(object *, object *);
extern object *PyObject_Call(object *, object *, object *), *PyDict_New(void);
extern int PyDict_SetItem(object *, object *, object *);
extern object *PyVectorcall_Call(object *, object *, object *);
extern void *PyLong_AsVoidPtr(object *);
extern long long PyLong_AsLongLong(object *), PyLong_AsLongLongAndOverflow(object *, int *);
extern object *PyLong_FromLongLong(long long), *PyLong_FromVoidPtr(void *);
extern double PyFloat_AsDouble(object *);
extern object *PyBytes_FromStringAndSize(const char *, length);
extern length PyBytes_Size(object *);
extern object *PyErr_Occurred(void), *PyExc_TypeError, *PyExc_RuntimeError;
extern void PyErr_Clear(void), PyErr_SetString(object *, const char *);
extern void PyErr_Fetch(object **, object **, object **), PyErr_Restore(object *, object *, object *);
extern object *PyErr_NoMemory(void);
extern int PyGC_Disable(void), PyGC_Enable(void);
extern void *PyEval_SaveThread(void);
extern void PyEval_RestoreThread(void *);
extern void *PyThreadState_Get(void);
extern uint64_t PyThreadState_GetID(void *);

static inline object *kept(object *x) {
    Py_IncRef(x);
    return x;
}

static inline void drop(object *x) {
    if (x)
        Py_DecRef(x);
}

// What launcher.py tells at start-up, in this order -------------------------------------------------------------------

static struct {
    object *node_class, *tensor_class, *storage_class, *table_class;  // Python's classes
    object *none, *true_, *false_, *zero, *not_implemented, *slice, *float_, *int_, *bytes, *generic;
    object *tuple, *ellipsis;
    object *setitem, *getitem, *turned, *reshape;  // Tensor's functions: `t[key] = value`, `t[key]`, `t.T`, `t.reshape`
    object *learn;       // (target, value) -> recipe: runs a statement for the first time
    object *learn_view;  // (tensor, view of it) -> how to make its like: True for itself, None for in Python
    object *template;    // (arguments that become operands, tree made of them) -> template of such trees, or None
    object *learn_call;  // (method, arguments, names) -> (result, recipe): runs a call that has come again
    object *fixed[3];    // types of objects that say what a call does, and do not change
} py;

static struct {
    length node_size, node_structure, node_inputs, node_draw;
    length tensor_structure, tensor_storage, tensor_rounding, tensor_span, tensor_address, tensor_start, tensor_stop;
    length tensor_array, tensor_base, tensor_name, tensor_persist_values;
    length structure_table, structure_combs, table_memo, slice_start, bytes_data;
    length storage_address, storage_nbytes, storage_owner, storage_writable;
} at;

static struct {
    void (*run_list)(const tb_launch *, int64_t);
    void *(*alloc)(int64_t);
    void (*free)(void *, int64_t);
} runtime;

static object *node_type, *memo_type, *method_type;
static object *tensor_types[8];  // the tensor classes in use, which live for ever
static int n_tensor_types;

// Entries of a tuple: borrowed, or as numbers. 0 with an exception where there are too few.
static int read_objects(object *tuple, object **to, length count) {
    for (length i = 0; i < count; i++)
        if (!(to[i] = PyTuple_GetItem(tuple, i)))
            return 0;
    return 1;
}

static int read_lengths(object *tuple, length *to, length count) {
    for (length i = 0; i < count; i++) {
        object *x = PyTuple_GetItem(tuple, i);
        if (!x)
            return 0;
        to[i] = (length)PyLong_AsLongLong(x);
    }
    return !PyErr_Occurred();
}

static inline object **field(object *x, length offset) { return (object **)((char *)x + offset); }
static inline object *slot(object *x, length offset) { return *field(x, offset); }

#endif
