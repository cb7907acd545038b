// SPDX-License-Identifier: Apache-2.0
// launcher/memory.h — fresh memory of the runtime: a Storage, and an owner that gives the memory back with its last reference
//
// The owner refers to nothing, so the garbage collector does not know it: see backends/memory.py. What is long is left to
// Python, which does not hold its lock while memory comes from the system.
#ifndef TB_LAUNCHER_MEMORY_H
#define TB_LAUNCHER_MEMORY_H

#include "memo.h"

enum { MOST_FRESH = 1 << 20 };  // bytes

typedef struct memory {
    object head;
    void *address;
    int64_t bytes;
} memory;

static object *memory_type;

static void memory_free(object *self) {
    memory *m = (memory *)self;
    object *type = self->type;
    if (m->address)
        runtime.free(m->address, m->bytes);
    PyObject_Free(self);
    Py_DecRef(type);
}

// A Storage of so many bytes; None where there is no memory, or for Python to make.
static object *memo_allocate(object *self, object *bytes) {
    (void)self;
    int over;
    int64_t n = bytes->type == py.int_ ? PyLong_AsLongLongAndOverflow(bytes, &over) : -1;
    if (n < 0 || n > MOST_FRESH)
        return kept(py.none);
    memory *owner = (memory *)PyType_GenericAlloc(memory_type, 0);
    object *storage = owner ? PyType_GenericAlloc(py.storage_class, 0) : NULL;
    if (!storage) {
        drop((object *)owner);
        return NULL;
    }
    owner->bytes = n ? n : 1;
    owner->address = runtime.alloc(owner->bytes);
    *field(storage, at.storage_owner) = &owner->head;
    *field(storage, at.storage_nbytes) = kept(bytes);
    *field(storage, at.storage_writable) = kept(py.true_);
    *field(storage, at.storage_address) = PyLong_FromVoidPtr(owner->address);
    if (owner->address && !PyErr_Occurred())
        return storage;
    Py_DecRef(storage);
    return PyErr_Occurred() ? NULL : kept(py.none);
}

#endif
