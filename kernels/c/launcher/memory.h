// SPDX-License-Identifier: Apache-2.0
// launcher/memory.h — fresh memory of the runtime: a Storage, and an owner that gives the memory back with its last reference
//
// The owner refers to nothing, so the garbage collector does not know it: see backends/memory.py. What is long is left to
// Python, which does not hold its lock while memory comes from the system.
#ifndef TB_LAUNCHER_MEMORY_H
#define TB_LAUNCHER_MEMORY_H

#include "views.h"

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

// memo.fresh(class, structure, bytes, rounding): a tensor in fresh memory, as `arrays.placed` makes it; None for Python to
// make.
static object *memo_fresh(object *self, object *const *arguments, length given) {
    if (given != 4 || ((memo *)self)->aside)
        return kept(py.none);
    object *storage = memo_allocate(self, arguments[2]);
    if (!storage || storage == py.none)
        return storage;
    object *tensor = PyType_GenericAlloc(arguments[0], 0);
    if (!tensor) {
        Py_DecRef(storage);
        return NULL;
    }
    int64_t address = PyLong_AsLongLong(slot(storage, at.storage_address));
    *field(tensor, at.tensor_storage) = storage;
    *field(tensor, at.tensor_rounding) = kept(arguments[3]);
    *field(tensor, at.tensor_name) = kept(py.none);
    *field(tensor, at.tensor_persist_values) = kept(py.true_);
    place_tensor(tensor, arguments[1], py.none, (span){address, address, address + PyLong_AsLongLong(arguments[2])});
    if (PyErr_Occurred())
        clear_field(&tensor);
    return tensor;
}

#endif
