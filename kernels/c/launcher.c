// SPDX-License-Identifier: Apache-2.0
// launcher.c — native nodes, operators and assignment for CPython: what Python decided once is done again quickly
//
// Types that stand beside Python classes of the same meaning: Node (a subclass of OpTreeNode), Operands (a mixin before a
// tensor class: operators and `t[:] = value`), Method (a backend's method that makes a node) and Memo (what a backend's
// table remembers for them). Nothing here knows an op, a shape or a type of numbers: a structure or statement that the
// memo does not hold goes to the Python function that the operator, method or assignment has without this file, and what
// came of it is then remembered.
//
// Nodes      (op, structures or number types of the operands) -> structure of the result. The operands are kept in the
//            node itself; Python sees them as a tuple, `inputs`.
// Statements (target's structure, root's structure or number type, repeats, overlap) -> a recipe: packed launches and
//            where each of their pointers and scalars comes from. The walk of a tree is that of `graph/fuse.py`: the
//            same order of leaves, the same repeats. A recipe is a tuple (words in bytes, whatever must live as long).
// Trees      (method, structure of the operand, one more argument and its name) -> a template of the tree that a method
//            such as `softmax` makes of one operand, a tuple like a recipe. Nothing but structures decides its form.
//            Of methods such as `clip` numbers are operands too, and their types are in the key.
// Views      (tensor's structure, key of the view) -> structure and place of the view: see launcher/views.h.
// Calls      of primitives, which Python has checked and run before: see launcher/calls.h.
// Groups     statements of a `with be.fuse():` block that run together: see launcher/groups.h.
// Checks     those that Python makes of every statement are made here too, or the statement goes to Python.
// Parts      launcher/python.h Python's ABI, nodes.h nodes, memo.h what is remembered, operators.h nodes from operators and
//            methods, views.h views, statements.h a statement by itself, groups.h those that wait, calls.h primitives,
//            memory.h fresh memory, graph.h variables of the graph; here assignment and the types.
// Python     3.10 to 3.14, with the interpreter lock.
// Locking    the interpreter lock protects everything here. It is given up around long launches only, and the backend's
//            own lock is then held. Statements are whole to other threads: a short one runs without the backend's lock
//            only where nobody holds that, which the lock tells the memo, and then no other thread can begin.
#include "launcher/graph.h"
#include "launcher/memory.h"
#include "launcher/operators.h"
#include "launcher/views.h"
#include "launcher/groups.h"
#include "launcher/calls.h"

// Assignment ----------------------------------------------------------------------------------------------------------

static int assign_whole(object *target, object *value, object *key) {
    stated s;
    statement known;
    memo *m = memo_of(slot(target, at.tensor_structure));
    int examined = m && !m->aside && examine(&s, target, value);
    fusing *f = m && m->fusing ? own_fusing(m) : NULL;
    if (f)
        return state_in_block(m, f, target, value, examined ? &s : NULL);
    enum outcome outcome = examined ? run_known(m, &s, &known) : TO_PYTHON;
    if (outcome == UNKNOWN)
        return run_first(target, value, &known, m);
    if (outcome == TO_PYTHON) {
        object *done = PyObject_CallFunctionObjArgs(py.setitem, target, key, value, NULL);
        drop(done);
        return done ? 0 : -1;
    }
    return outcome == DONE ? 0 : -1;
}

static object *whole_slice;

static int set_item(object *self, object *key, object *value) {
    if (!value) {
        PyErr_SetString(PyExc_TypeError, "del: the elements of a tensor stay\n  try       be.copy(t[kept])");
        return -1;
    }
    if (is_whole(key))
        return assign_whole(self, value, key);
    object *view = known_item(self, key);
    if (view) {
        int failed = assign_whole(view, value, whole_slice);
        Py_DecRef(view);
        return failed;
    }
    if (PyErr_Occurred())
        return -1;
    object *done = PyObject_CallFunctionObjArgs(py.setitem, self, key, value, NULL);
    drop(done);
    return done ? 0 : -1;
}

static object *assign(object *self, object *value) {
    return assign_whole(self, value, whole_slice) < 0 ? NULL : kept(self);
}

// Types ---------------------------------------------------------------------------------------------------------------

// The slots of all operators that the table of ops has, at `slots`; the number of them.
static int operator_slots(type_slot *slots) {
    int n = 0;
    for (int i = ADD; i < N_OPERATORS; i++)
        if (operators[i].op)
            slots[n++] = (type_slot){operator_defs[i].slot, operator_defs[i].function};
    slots[n++] = (type_slot){TP_RICHCOMPARE, compare};
    slots[n++] = (type_slot){TP_HASH, identity_hash};
    return n;
}

static object *make_type(const char *name, length size, unsigned flags, type_slot *slots, object *base) {
    type_spec spec = {name, (int)size, 0, flags, slots};
    object *bases = NULL;
    if (base) {
        bases = PyTuple_New(1);
        PyTuple_SetItem(bases, 0, kept(base));
    }
    object *made = PyType_FromSpecWithBases(&spec, bases);
    drop(bases);
    return made;
}

static object *make_node_type(void) {
    static getset_def properties[] = {{"inputs", get_inputs, 0, "The operands: tensors, nodes and numbers.", 0}, {0}};
    type_slot slots[40] = {{0}};
    int n = operator_slots(slots);
    slots[n++] = (type_slot){TP_DEALLOC, node_free};
    slots[n++] = (type_slot){TP_TRAVERSE, node_traverse};
    slots[n++] = (type_slot){TP_CLEAR, node_clear};
    slots[n++] = (type_slot){TP_GETSET, properties};
    return make_type("tensorbackend.graph.optree.OpTreeNode", at.node_size + (length)sizeof(extra), COLLECTED, slots,
                     py.node_class);
}

static object *make_operands_type(void) {
    static method_def methods[] = {
        {"_assign", assign, ONE_ARGUMENT, "Set every element, and return the tensor."},
        {"reshape", (object *(*)(object *, object *))(void *)reshape, FAST,
         "The same numbers in C order under another shape; one length may be -1."},
        {0}};
    static getset_def properties[] = {
        {"T", get_turned, 0, "The transpose: all axes reversed; from rank 3 on and with `_min_dims` not 0, axis 0 stays.", 0},
        {0}};
    type_slot slots[40] = {{0}};
    int n = operator_slots(slots);
    slots[n++] = (type_slot){MP_SUBSCRIPT, get_item};
    slots[n++] = (type_slot){MP_ASS_SUBSCRIPT, set_item};
    slots[n++] = (type_slot){TP_METHODS, methods};
    slots[n++] = (type_slot){TP_GETSET, properties};
    return make_type("tensorbackend.backends.launcher.Operands", sizeof(object), BASE_TYPE, slots, NULL);
}

static object *make_memo_type(void) {
    static method_def methods[] = {
        {"clear", memo_clear, NO_ARGUMENTS, "Forget everything."},
        {"allocate", memo_allocate, ONE_ARGUMENT, "A Storage of so many bytes, or None for Python to make it."},
        {"fresh", (object *(*)(object *, object *))(void *)memo_fresh, FAST,
         "A tensor of a class, a layout, so many bytes and a rounding in fresh memory, or None for Python to make it."},
        {"link", (object *(*)(object *, object *))(void *)memo_link, FAST,
         "The outputs of a function as variables that know it, or None for Python to make them."},
        {"tell_graph", memo_tell_graph, ONE_ARGUMENT, "What variables and their nodes are, for `link`."},
        {"grow", (object *(*)(object *, object *))(void *)memo_grow, FAST, "Append the nodes of a template to a list."},
        {"look", (object *(*)(object *, object *))(void *)memo_look, FAST, "Append the views of a template to a list."},
        {"counts", memo_counts, NO_ARGUMENTS, "Structures and statements held, and statements run."},
        {"acquire", memo_acquire, NO_ARGUMENTS, "Wait until the backend's lock is this thread's."},
        {"release", memo_release, NO_ARGUMENTS, "Give the backend's lock back."},
        {"__enter__", memo_acquire, NO_ARGUMENTS, "As acquire."},
        {"__exit__", memo_release, ANY_ARGUMENTS, "As release."},
        {"stand_aside", memo_stand_aside, ONE_ARGUMENT, "Whether all is to go through Python."},
        {"set_lock", memo_set_lock, ONE_ARGUMENT, "Take a re-entrant lock: acquire, release, how often it is held, where that is."},
        {"set_group", memo_set_group, ONE_ARGUMENT, "Take the functions `join`, `adopt` and `flush` of a fuse block."},
        {"begin", memo_begin, NO_ARGUMENTS, "A fuse block of this thread begins."},
        {"end", memo_end, ANY_ARGUMENTS, "A fuse block of this thread ends."},
        {"flush", memo_flush, NO_ARGUMENTS, "Run the statements of this thread that wait."},
        {0}};
    type_slot slots[] = {{TP_DEALLOC, memo_free}, {TP_TRAVERSE, memo_traverse}, {TP_CLEAR, memo_forget},
                         {TP_METHODS, methods}, {0, 0}};
    return make_type("tensorbackend.backends.launcher.Memo", sizeof(memo), COLLECTED, slots, NULL);
}

static object *make_memory_type(void) {
    type_slot slots[] = {{TP_DEALLOC, memory_free}, {0, 0}};
    return make_type("tensorbackend.backends.launcher.Memory", sizeof(memory), 0, slots, NULL);
}

static object *make_method_type(void) {
    static member_def members[] = {
        {"__vectorcalloffset__", MEMBER_LENGTH, offsetof(method, call), MEMBER_READ_ONLY, 0}, {0}};
    type_slot slots[] = {{TP_CALL, PyVectorcall_Call}, {TP_GETATTRO, method_attribute}, {TP_DEALLOC, method_free},
                         {TP_TRAVERSE, method_traverse}, {TP_MEMBERS, members}, {0, 0}};
    return make_type("tensorbackend.backends.launcher.Method", sizeof(method), VECTORCALL | COLLECTED, slots, NULL);
}

static int read_operators(object *found) {
    for (int i = 0; i < N_OPERATORS; i++) {
        object *entry = PyDict_GetItemString(found, operator_defs[i].name);
        if (!entry)
            continue;
        operators[i].op = kept(PyTuple_GetItem(entry, 0));
        operators[i].method = kept(PyTuple_GetItem(entry, 1));
        object *reflected = PyTuple_GetItem(entry, 2);
        operators[i].reflected = reflected == py.none ? NULL : kept(reflected);
    }
    return !PyErr_Occurred();
}

// Called once a process with (objects, offsets, operators, addresses of the runtime, a whole slice).
// Returns the types (Node, Operands, Memo).
object *tb_launcher_start(object *facts) {
    object *part[5];
    if (!read_objects(facts, part, 5) || !read_objects(part[0], (object **)&py, sizeof py / sizeof(object *))
        || !read_lengths(part[1], (length *)&at, sizeof at / sizeof(length)))
        return NULL;
    void **functions = (void **)&runtime;
    for (length i = 0; i < 3; i++)
        functions[i] = PyLong_AsVoidPtr(PyTuple_GetItem(part[3], i));
    if (!read_operators(part[2]))
        return NULL;
    Py_IncRef(facts);  // for ever, and with it all that was borrowed above
    whole_slice = part[4];
    node_type = make_node_type();
    object *operands_type = make_operands_type();
    memo_type = make_memo_type();
    method_type = make_method_type();
    memory_type = make_memory_type();
    object *types = PyTuple_New(3);
    if (!node_type || !operands_type || !memo_type || !method_type || !memory_type || !types)
        return NULL;
    PyTuple_SetItem(types, 0, kept(node_type));
    PyTuple_SetItem(types, 1, operands_type);
    PyTuple_SetItem(types, 2, kept(memo_type));
    return types;
}

// Tells of a tensor class that has Operands for a base, which must live for ever. Any other is merely slower.
object *tb_launcher_add_tensor_class(object *type) {
    if (n_tensor_types < (int)(sizeof tensor_types / sizeof *tensor_types))
        tensor_types[n_tensor_types++] = kept(type);
    return kept(py.none);
}
