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
// Groups     statements of a `with be.fuse():` block that run together: see Groups below.
// Checks     those that Python makes of every statement are made here too, or the statement goes to Python.
// Deep trees are freed without recursion: see node_free.
// Python     3.10 to 3.14, with the interpreter lock. Only functions of the stable ABI are used, declared by hand, so
//            that no header of Python's is needed. Offsets of slots are found out at start-up (launcher.py).
// Locking    the interpreter lock protects everything here. It is given up around long launches only, and the backend's
//            own lock is then held. Statements are whole to other threads: a short one runs without the backend's lock
//            only where nobody holds that, which the lock tells the memo, and then no other thread can begin.
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "runtime.h"

// Python's ABI --------------------------------------------------------------------------------------------------------

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
enum { NO_ARGUMENTS = 4, ONE_ARGUMENT = 8, MEMBER_LENGTH = 19, MEMBER_READ_ONLY = 1 };
static const size_t ARGUMENT_COUNT = SIZE_MAX >> 1;  // less the flag that a caller of a vectorcall may set
enum { MP_ASS_SUBSCRIPT = 3, NB_ABSOLUTE = 6, NB_ADD, NB_AND, NB_FLOOR_DIVIDE = 12, NB_INVERT = 27, NB_LSHIFT, NB_MULTIPLY,
       NB_NEGATIVE, NB_OR, NB_POWER = 33, NB_REMAINDER, NB_RSHIFT, NB_SUBTRACT, NB_TRUE_DIVIDE, NB_XOR,
       TP_CALL = 50, TP_CLEAR, TP_DEALLOC, TP_GETATTRO = 58, TP_HASH, TP_METHODS = 64, TP_RICHCOMPARE = 67,
       TP_TRAVERSE = 71, TP_MEMBERS, TP_GETSET, NB_MATRIX_MULTIPLY = 75 };

extern void Py_IncRef(object *), Py_DecRef(object *);
extern object *PyObject_Init(object *, object *), *PyType_GenericAlloc(object *, length);
extern void PyObject_GC_Track(void *), PyObject_GC_UnTrack(void *), PyObject_GC_Del(void *);
extern void PyObject_ClearWeakRefs(object *);
extern object *PyType_FromSpecWithBases(type_spec *, object *);
extern int PyType_IsSubtype(object *, object *);
extern object *PyTuple_New(length), *PyTuple_GetItem(object *, length);
extern int PyTuple_SetItem(object *, length, object *);
extern length PyTuple_Size(object *);
extern object *PyDict_GetItemString(object *, const char *);
extern object *PyObject_CallFunctionObjArgs(object *, ...), *PyObject_GetAttr(object *, object *);
extern object *PyObject_Call(object *, object *, object *), *PyDict_New(void);
extern int PyDict_SetItem(object *, object *, object *);
extern object *PyVectorcall_Call(object *, object *, object *);
extern void *PyLong_AsVoidPtr(object *);
extern long long PyLong_AsLongLong(object *), PyLong_AsLongLongAndOverflow(object *, int *);
extern object *PyLong_FromLongLong(long long);
extern double PyFloat_AsDouble(object *);
extern object *PyBytes_FromStringAndSize(const char *, length);
extern object *PyErr_Occurred(void), *PyExc_AttributeError, *PyExc_RuntimeError;
extern void PyErr_Clear(void), PyErr_SetString(object *, const char *);
extern object *PyErr_NoMemory(void);
extern void *PyEval_SaveThread(void);
extern void PyEval_RestoreThread(void *);
extern unsigned long PyThread_get_thread_ident(void);

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
    object *setitem, *learn;  // Tensor.__setitem__; (target, value) -> recipe: runs a statement for the first time
    object *template;         // (argument, tree made of it) -> template of such trees, or None
} py;

static struct {
    length node_size, node_structure, node_inputs, node_draw;
    length tensor_structure, tensor_storage, tensor_rounding, tensor_span, tensor_address, tensor_start, tensor_stop;
    length structure_table, table_memo, storage_writable, slice_start, bytes_data;
} at;

static struct {
    void (*run_list)(const tb_launch *, int64_t);
    void *(*alloc)(int64_t);
    void (*free)(void *, int64_t);
} runtime;

static object *node_type, *memo_type, *method_type;
static object *tensor_types[8];  // the tensor classes in use, which live for ever
static int n_tensor_types;

static inline object **field(object *x, length offset) { return (object **)((char *)x + offset); }
static inline object *slot(object *x, length offset) { return *field(x, offset); }

// Nodes ---------------------------------------------------------------------------------------------------------------

enum { OPERANDS = 3, SPARE_NODES = 256 };

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
    if (node) {
        spare = extra_of(node)->next;
        spares--;
        PyObject_Init(node, node_type);
    } else {
        node = PyType_GenericAlloc(node_type, 0);
        if (!node)
            return NULL;
        PyObject_GC_UnTrack(node);
    }
    *field(node, at.node_structure) = kept(structure);
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

static inline enum kind kind_of(object *x) {
    object *type = x->type;
    if (type == node_type)
        return NODE;
    for (int i = 0; i < n_tensor_types; i++)
        if (type == tensor_types[i])
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

// Memos ---------------------------------------------------------------------------------------------------------------

// States of groups are numbers from 1 on, or:
enum { EMPTY = 0, UNTRACKED = -1, APART = -2 };
enum { KEY_STATE, KEY_TARGET, KEY_ROOT, KEY_OVERLAP, KEY_REPEATS, KEY_HEAD };
enum { FIRST_SIZE = 64, MOST_STRUCTURES = 1 << 16, MOST_STATEMENTS = 1 << 13, MOST_LEAVES = 64, MOST_REPEATS = 32 };

typedef struct known {
    object *key[OPERANDS + 1];  // the op, and a structure or type for each operand
    object *result;
} known;

typedef struct statement {
    object *target, *root;
    int32_t *repeats;  // n_repeats pairs
    int32_t n_repeats, overlap;
    object *recipe;
} statement;

// Whether a statement joins the group that waits, and what the group is then: see Groups. `key` says which statement.
typedef struct joining {
    int64_t *key;  // NULL: a free place
    int64_t words, next;
    object *target, *root;  // kept, so that the key's addresses stay theirs
} joining;

// Three open-addressed tables of a power of two places, at most half full.
typedef struct memo {
    object head;
    known *nodes;
    length n_nodes, node_places;
    statement *statements;
    length n_statements, statement_places;
    joining *joins;
    length n_joins, join_places;
    object **recipes;  // of the states from first_state on; NULL where none is known
    int64_t first_state, n_states, state_places;
    object *acquire, *release;     // the backend's lock
    object *join, *adopt, *flush;  // Python's part of `be.fuse()`
    struct fusing *fusing, *idle;  // the threads in a `fuse` block, and records for others
    long long hits;                // statements run from a recipe
    long long held;                // how many times the lock is held
} memo;

static inline uint64_t mixed(uint64_t h, uint64_t x) {
    h = (h ^ x) * 0x9E3779B97F4A7C15u;
    return h ^ h >> 32;
}

static inline known *find_node(known *table, length places, object *const *key) {
    uint64_t h = 0;
    for (int i = 0; i <= OPERANDS; i++)
        h = mixed(h, (uintptr_t)key[i]);
    for (length i = h & (places - 1);; i = (i + 1) & (places - 1)) {
        known *found = &table[i];
        if (!found->result || !memcmp(found->key, key, sizeof found->key))
            return found;
    }
}

static statement *find_statement(statement *table, length places, const statement *wanted) {
    uint64_t h = mixed(mixed((uintptr_t)wanted->target, (uintptr_t)wanted->root), (uint64_t)wanted->overlap);
    size_t bytes = sizeof(int32_t) * 2 * (size_t)wanted->n_repeats;
    for (int i = 0; i < 2 * wanted->n_repeats; i++)
        h = mixed(h, (uint64_t)wanted->repeats[i]);
    for (length i = h & (places - 1);; i = (i + 1) & (places - 1)) {
        statement *s = &table[i];
        if (!s->recipe || (s->target == wanted->target && s->root == wanted->root && s->overlap == wanted->overlap &&
                           s->n_repeats == wanted->n_repeats && !memcmp(s->repeats, wanted->repeats, bytes)))
            return s;
    }
}

static joining *find_joining(joining *table, length places, const int64_t *key, int64_t words) {
    uint64_t h = 0;
    for (int64_t i = 0; i < words; i++)
        h = mixed(h, (uint64_t)key[i]);
    for (length i = h & (places - 1);; i = (i + 1) & (places - 1)) {
        joining *j = &table[i];
        if (!j->key || (j->words == words && !memcmp(j->key, key, sizeof *key * (size_t)words)))
            return j;
    }
}

// Numbers of states are not given twice: a group that waits while its state is forgotten goes to Python.
static void forget_groups(memo *m) {
    joining *joins = m->joins;
    object **recipes = m->recipes;
    length join_places = m->join_places;
    int64_t n_states = m->n_states;
    m->joins = NULL;
    m->recipes = NULL;
    m->n_joins = m->join_places = 0;
    m->first_state += n_states;
    m->n_states = m->state_places = 0;
    for (length i = 0; i < join_places; i++) {
        drop(joins[i].target);
        drop(joins[i].root);
        free(joins[i].key);
    }
    for (int64_t i = 0; i < n_states; i++)
        drop(recipes[i]);
    free(joins);
    free(recipes);
}

// Empties the tables before it drops what they held: what is freed may call Python, and that may come back here.
static object *memo_clear(object *self, object *unused) {
    memo *m = (memo *)self;
    known *nodes = m->nodes;
    statement *statements = m->statements;
    length node_places = m->node_places, statement_places = m->statement_places;
    m->nodes = NULL;
    m->statements = NULL;
    m->n_nodes = m->node_places = m->n_statements = m->statement_places = 0;
    for (length i = 0; i < node_places; i++) {
        for (int k = 0; k <= OPERANDS; k++)
            drop(nodes[i].key[k]);
        drop(nodes[i].result);
    }
    for (length i = 0; i < statement_places; i++) {
        drop(statements[i].target);
        drop(statements[i].root);
        drop(statements[i].recipe);
        free(statements[i].repeats);
    }
    free(nodes);
    free(statements);
    forget_groups(m);
    return kept(py.none);
}

static int memo_traverse(object *self, visitor visit, void *argument) {
    memo *m = (memo *)self;
    object *own[6] = {self->type, m->acquire, m->release, m->join, m->adopt, m->flush};
    int stop = visit_all(own, 6, visit, argument);
    for (length i = 0; !stop && i < m->node_places; i++) {
        stop = visit_all(m->nodes[i].key, OPERANDS + 1, visit, argument);
        if (!stop)
            stop = visit_all(&m->nodes[i].result, 1, visit, argument);
    }
    for (length i = 0; !stop && i < m->statement_places; i++) {
        object *all[3] = {m->statements[i].target, m->statements[i].root, m->statements[i].recipe};
        stop = visit_all(all, 3, visit, argument);
    }
    for (length i = 0; !stop && i < m->join_places; i++) {
        object *all[2] = {m->joins[i].target, m->joins[i].root};
        stop = visit_all(all, 2, visit, argument);
    }
    return stop ? stop : visit_all(m->recipes, (int)m->n_states, visit, argument);
}

static int memo_forget(object *self) {
    memo *m = (memo *)self;
    object **own[5] = {&m->acquire, &m->release, &m->join, &m->adopt, &m->flush};
    drop(memo_clear(self, NULL));
    for (int i = 0; i < 5; i++)
        clear_field(own[i]);
    return 0;
}

static void free_fusing(struct fusing *list);

static void memo_free(object *self) {
    object *type = self->type;
    PyObject_GC_UnTrack(self);
    memo_forget(self);
    free_fusing(((memo *)self)->fusing);
    free_fusing(((memo *)self)->idle);
    PyObject_GC_Del(self);
    Py_DecRef(type);
}

static int grow_nodes(memo *m) {
    length places = m->node_places ? 2 * m->node_places : FIRST_SIZE;
    known *table = calloc((size_t)places, sizeof *table);
    if (!table)
        return 0;
    for (length i = 0; i < m->node_places; i++)
        if (m->nodes[i].result)
            *find_node(table, places, m->nodes[i].key) = m->nodes[i];
    free(m->nodes);
    m->nodes = table;
    m->node_places = places;
    return 1;
}

static int grow_statements(memo *m) {
    length places = m->statement_places ? 2 * m->statement_places : FIRST_SIZE;
    statement *table = calloc((size_t)places, sizeof *table);
    if (!table)
        return 0;
    for (length i = 0; i < m->statement_places; i++)
        if (m->statements[i].recipe)
            *find_statement(table, places, &m->statements[i]) = m->statements[i];
    free(m->statements);
    m->statements = table;
    m->statement_places = places;
    return 1;
}

// Memory that is missing only means that nothing is remembered.
static void remember_node(memo *m, object *const *key, object *result) {
    if (m->n_nodes >= MOST_STRUCTURES)
        drop(memo_clear(&m->head, NULL));
    if (2 * m->n_nodes >= m->node_places && !grow_nodes(m))
        return;
    known *place = find_node(m->nodes, m->node_places, key);
    if (place->result)
        return;
    for (int i = 0; i <= OPERANDS; i++)
        place->key[i] = key[i] ? kept(key[i]) : NULL;
    place->result = kept(result);
    m->n_nodes++;
}

static void remember_statement(memo *m, const statement *s, object *recipe) {
    if (m->n_statements >= MOST_STATEMENTS)
        drop(memo_clear(&m->head, NULL));
    size_t bytes = sizeof(int32_t) * 2 * (size_t)s->n_repeats;
    int32_t *repeats = malloc(bytes + 1);
    if (!repeats || (2 * m->n_statements >= m->statement_places && !grow_statements(m))) {
        free(repeats);
        return;
    }
    statement *place = find_statement(m->statements, m->statement_places, s);
    if (place->recipe) {
        free(repeats);
        return;
    }
    *place = *s;
    place->repeats = memcpy(repeats, s->repeats, bytes);
    kept(s->target);
    kept(s->root);
    place->recipe = kept(recipe);
    m->n_statements++;
}

static int grow_joins(memo *m) {
    length places = m->join_places ? 2 * m->join_places : FIRST_SIZE;
    joining *table = calloc((size_t)places, sizeof *table);
    if (!table)
        return 0;
    for (length i = 0; i < m->join_places; i++)
        if (m->joins[i].key)
            *find_joining(table, places, m->joins[i].key, m->joins[i].words) = m->joins[i];
    free(m->joins);
    m->joins = table;
    m->join_places = places;
    return 1;
}

// The number of a new state, UNTRACKED when there is no memory for it.
static int64_t new_state(memo *m) {
    if (m->n_states == m->state_places) {
        int64_t places = m->state_places ? 2 * m->state_places : FIRST_SIZE;
        object **recipes = realloc(m->recipes, sizeof *recipes * (size_t)places);
        if (!recipes)
            return UNTRACKED;
        m->recipes = recipes;
        m->state_places = places;
    }
    m->recipes[m->n_states] = NULL;
    return m->first_state + m->n_states++;
}

// Remembers that a statement joins a group or not; the state of the group with it, APART if not.
static int64_t remember_joining(memo *m, const int64_t *key, int64_t words, int joins) {
    if (m->n_joins >= MOST_STATEMENTS)
        drop(memo_clear(&m->head, NULL));
    if (2 * m->n_joins >= m->join_places && !grow_joins(m))
        return UNTRACKED;
    joining *place = find_joining(m->joins, m->join_places, key, words);
    if (place->key)
        return place->next;
    int64_t next = joins ? new_state(m) : APART;
    int64_t *copy = next == UNTRACKED ? NULL : malloc(sizeof *key * (size_t)words);
    if (!copy)
        return UNTRACKED;
    memcpy(copy, key, sizeof *key * (size_t)words);
    object *target = (object *)(uintptr_t)key[KEY_TARGET], *root = (object *)(uintptr_t)key[KEY_ROOT];
    *place = (joining){copy, words, next, kept(target), kept(root)};
    m->n_joins++;
    return next;
}

static inline object **recipe_of_state(memo *m, int64_t state) {
    int64_t i = state - m->first_state;
    return state > 0 && i >= 0 && i < m->n_states ? &m->recipes[i] : NULL;
}

// The memo of the table that a structure belongs to, or NULL when it keeps none. Borrowed.
static inline memo *memo_of(object *structure) {
    object *table = structure ? slot(structure, at.structure_table) : NULL;
    if (!table || table->type != py.table_class)
        return NULL;
    object *m = slot(table, at.table_memo);
    return m && m->type == memo_type ? (memo *)m : NULL;
}

// How many structures and statements it holds, and how many statements it ran.
static object *memo_counts(object *self, object *unused) {
    memo *m = (memo *)self;
    object *all = PyTuple_New(3);
    if (all) {
        PyTuple_SetItem(all, 0, PyLong_FromLongLong(m->n_nodes));
        PyTuple_SetItem(all, 1, PyLong_FromLongLong(m->n_statements));
        PyTuple_SetItem(all, 2, PyLong_FromLongLong(m->hits));
    }
    return all;
}

// Adds to the count of how many times the lock is held.
static object *memo_hold(object *self, object *by) {
    ((memo *)self)->held += PyLong_AsLongLong(by);
    return PyErr_Occurred() ? NULL : kept(py.none);
}

static object *memo_set_lock(object *self, object *pair) {
    memo *m = (memo *)self;
    object *acquire = PyTuple_GetItem(pair, 0), *release = PyTuple_GetItem(pair, 1);
    if (!acquire || !release)
        return NULL;
    m->acquire = kept(acquire);
    m->release = kept(release);
    return kept(py.none);
}

// Operators -----------------------------------------------------------------------------------------------------------

// The node that Python made of these very operands, as a Node; what it made is remembered. Takes `made` over.
static object *adopt(object *made, object *const *key, object *const *operands, int count) {
    if (!made || made->type != py.node_class)
        return made;
    object *inputs = slot(made, at.node_inputs), *structure = slot(made, at.node_structure);
    memo *m = memo_of(structure);
    int same = m && PyTuple_Size(inputs) == count;
    for (int i = 0; same && i < count; i++)
        same = key[i + 1] && PyTuple_GetItem(inputs, i) == operands[i];
    if (!same)
        return made;
    remember_node(m, key, structure);
    object *node = node_new(structure, operands, count);
    Py_DecRef(made);
    return node;
}

static inline object *known_node(const memo *m, object *const *key, object *const *operands, int count) {
    if (!m || !m->n_nodes)
        return NULL;
    object *structure = find_node(m->nodes, m->node_places, key)->result;
    return structure ? node_new(structure, operands, count) : NULL;
}

// A Python operator: its op, the method and the reflected method.
typedef struct { const char *name; int slot; void *function; } operator_def;
static struct { object *op, *method, *reflected; } operators[32];

static inline object *binary(int number, object *a, object *b) {
    object *const operands[2] = {a, b};
    object *const key[OPERANDS + 1] = {operators[number].op, key_of(a), key_of(b)};
    int a_owns = key[1] && key[1] != a->type;
    if (key[1] && key[2]) {
        object *node = known_node(memo_of(key[a_owns ? 1 : 2]), key, operands, 2);
        if (node)
            return node;
    }
    object *made = a_owns ? PyObject_CallFunctionObjArgs(operators[number].method, a, b, NULL)
                   : operators[number].reflected ? PyObject_CallFunctionObjArgs(operators[number].reflected, b, a, NULL)
                                                 : kept(py.not_implemented);
    return adopt(made, key, operands, 2);
}

static inline object *unary(int number, object *a) {
    object *const operands[1] = {a};
    object *const key[OPERANDS + 1] = {operators[number].op, key_of(a)};
    object *node = known_node(memo_of(key[1]), key, operands, 1);
    return node ? node : adopt(PyObject_CallFunctionObjArgs(operators[number].method, a, NULL), key, operands, 1);
}

enum { LT, LE, EQ, NE, GT, GE, ADD, SUB, MUL, TRUEDIV, FLOORDIV, MOD, LSHIFT, RSHIFT, AND, OR, XOR, POW, NEG, ABS, INVERT, MATMUL };

#define BINARY(name, number) \
    static object *name(object *a, object *b) { return binary(number, a, b); }
#define UNARY(name, number) \
    static object *name(object *a) { return unary(number, a); }
BINARY(op_add, ADD)
BINARY(op_sub, SUB)
BINARY(op_mul, MUL)
BINARY(op_truediv, TRUEDIV)
BINARY(op_floordiv, FLOORDIV)
BINARY(op_mod, MOD)
BINARY(op_lshift, LSHIFT)
BINARY(op_rshift, RSHIFT)
BINARY(op_and, AND)
BINARY(op_or, OR)
BINARY(op_xor, XOR)
BINARY(op_matmul, MATMUL)
UNARY(op_neg, NEG)
UNARY(op_abs, ABS)
UNARY(op_invert, INVERT)

static object *op_pow(object *a, object *b, object *modulus) {
    return modulus == py.none ? binary(POW, a, b) : kept(py.not_implemented);
}

static object *compare(object *a, object *b, int number) { return binary(number, a, b); }

// As Operators.__hash__: equality builds a node, so objects are told apart by identity.
static intptr_t identity_hash(object *self) { return (intptr_t)((uintptr_t)self >> 4); }

// Python's names for its operators, in the order of the numbers above. Comparisons share one slot.
static const operator_def operator_defs[] = {
    {"lt", 0, 0}, {"le", 0, 0}, {"eq", 0, 0}, {"ne", 0, 0}, {"gt", 0, 0}, {"ge", 0, 0},
    {"add", NB_ADD, op_add}, {"sub", NB_SUBTRACT, op_sub}, {"mul", NB_MULTIPLY, op_mul},
    {"truediv", NB_TRUE_DIVIDE, op_truediv}, {"floordiv", NB_FLOOR_DIVIDE, op_floordiv}, {"mod", NB_REMAINDER, op_mod},
    {"lshift", NB_LSHIFT, op_lshift}, {"rshift", NB_RSHIFT, op_rshift}, {"and", NB_AND, op_and}, {"or", NB_OR, op_or},
    {"xor", NB_XOR, op_xor}, {"pow", NB_POWER, op_pow}, {"neg", NB_NEGATIVE, op_neg}, {"abs", NB_ABSOLUTE, op_abs},
    {"invert", NB_INVERT, op_invert}, {"matmul", NB_MATRIX_MULTIPLY, op_matmul},
};
enum { N_OPERATORS = sizeof operator_defs / sizeof *operator_defs };

// Methods -------------------------------------------------------------------------------------------------------------

// A backend's method of an op, bound to the backend. In all but calls it is the Python method.
typedef struct method {
    object head;
    object *(*call)(object *, object *const *, size_t, object *);
    object *op, *python, *memo;
    length arity;
} method;

// The Python method with `count` arguments by place and more by name. (PyObject_Vectorcall is no function in 3.10.)
static object *call_python(object *python, object *const *arguments, length count, object *names) {
    object *all = PyTuple_New(count), *named = names ? PyDict_New() : NULL, *made = NULL;
    int good = all && (named || !names);
    for (length i = 0; good && i < count; i++)
        PyTuple_SetItem(all, i, kept(arguments[i]));
    for (length i = 0; good && named && i < PyTuple_Size(names); i++)
        good = PyDict_SetItem(named, PyTuple_GetItem(names, i), arguments[count + i]) == 0;
    if (good)
        made = PyObject_Call(python, all, named);
    drop(all);
    drop(named);
    return made;
}

static object *method_call(object *self, object *const *arguments, size_t count, object *names) {
    const method *f = (const method *)self;
    object *key[OPERANDS + 1] = {f->op};
    length by_place = (length)(count & ARGUMENT_COUNT);
    int n = (int)f->arity, known = !names && by_place == n;
    for (int i = 0; known && i < n; i++)
        known = (key[i + 1] = key_of(arguments[i])) != NULL;
    object *node = known ? known_node((memo *)f->memo, key, arguments, n) : NULL;
    if (node)
        return node;
    object *made = call_python(f->python, arguments, by_place, names);
    return known ? adopt(made, key, arguments, n) : made;
}

enum { MOST_PARTS = 32, OPERAND = -1 };

// A tree like the one that a template was made of. Its words: the number of nodes, then for each its structure, the
// number of its operands, and these: OPERAND, the number of an earlier node, or the address of a constant.
static object *instantiate(object *template, object *operand) {
    const int64_t *words = data_of(PyTuple_GetItem(template, 0));
    object *parts[MOST_PARTS], *made = NULL;
    int total = (int)*words++, n = 0;
    kept(template);
    for (; n < total; n++) {
        object *operands[OPERANDS];
        int count = (int)words[1];
        for (int i = 0; i < count; i++) {
            int64_t word = words[2 + i];
            operands[i] = word == OPERAND ? operand : word < MOST_PARTS ? parts[word] : (object *)word;
        }
        made = parts[n] = node_new((object *)words[0], operands, count);
        if (!made)
            break;
        words += 2 + count;
    }
    for (int i = 0; i < n - (made != NULL); i++)
        Py_DecRef(parts[i]);
    Py_DecRef(template);
    return made;
}

// Arguments that decide the form of a tree by what they are: None, truth values, and integers as small as axes.
static inline int is_static(object *x) {
    if (x == py.none || x == py.true_ || x == py.false_)
        return 1;
    return x->type == py.int_ && (unsigned long long)PyLong_AsLongLongAndOverflow(x, &(int){0}) + 4 <= 68;
}

// A method of one operand and at most one more argument that is static; all other calls are Python's.
static object *tree_call(object *self, object *const *arguments, size_t count, object *names) {
    const method *f = (const method *)self;
    memo *m = (memo *)f->memo;
    object *key[OPERANDS + 1] = {f->op};
    length by_place = (length)(count & ARGUMENT_COUNT), all = by_place + (names ? PyTuple_Size(names) : 0);
    int known = by_place >= 1 && all <= 2 && (all == 1 || is_static(arguments[1]));
    if (known) {
        key[1] = key_of(arguments[0]);
        key[2] = all == 2 ? arguments[1] : NULL;
        key[3] = all > by_place ? PyTuple_GetItem(names, 0) : NULL;
        known = key[1] && key[1] != arguments[0]->type && memo_of(key[1]) == m;
    }
    object *template = known && m->n_nodes ? find_node(m->nodes, m->node_places, key)->result : NULL;
    if (template && template != py.none)
        return instantiate(template, arguments[0]);
    object *made = call_python(f->python, arguments, by_place, names);
    if (!made || !known || template)
        return made;
    template = PyObject_CallFunctionObjArgs(py.template, arguments[0], made, NULL);
    if (!template) {
        Py_DecRef(made);
        return NULL;
    }
    remember_node(m, key, template);
    Py_DecRef(template);
    return made;
}

static object *method_attribute(object *self, object *name) { return PyObject_GetAttr(((method *)self)->python, name); }

static int method_traverse(object *self, visitor visit, void *argument) {
    method *f = (method *)self;
    object *all[4] = {self->type, f->op, f->python, f->memo};
    return visit_all(all, 4, visit, argument);
}

static void method_free(object *self) {
    method *f = (method *)self;
    object *type = self->type;
    PyObject_GC_UnTrack(self);
    drop(f->op);
    drop(f->python);
    drop(f->memo);
    PyObject_GC_Del(self);
    Py_DecRef(type);
}

// (op or function, bound Python method, memo, arity of an op, 0 for a method that makes a tree of one operand) -> Method
object *tb_launcher_method(object *parts) {
    method *f = (method *)PyType_GenericAlloc(method_type, 0);
    if (!f)
        return NULL;
    f->op = kept(PyTuple_GetItem(parts, 0));
    f->python = kept(PyTuple_GetItem(parts, 1));
    f->memo = kept(PyTuple_GetItem(parts, 2));
    f->arity = (length)PyLong_AsLongLong(PyTuple_GetItem(parts, 3));
    f->call = f->arity ? method_call : tree_call;
    return &f->head;
}

// Statements ----------------------------------------------------------------------------------------------------------

// The leaves of a value and where parts of it are used again, as `walk` of graph/fuse.py finds them.
typedef struct walked {
    object *leaf[MOST_LEAVES];
    enum kind kind[MOST_LEAVES];
    int32_t repeats[2 * MOST_REPEATS];
    int leaves, n_repeats;
} walked;

static inline int add_leaf(walked *w, object *x, enum kind kind) {
    if (w->leaves == MOST_LEAVES)
        return 0;
    w->kind[w->leaves] = kind;
    w->leaf[w->leaves++] = x;
    return 1;
}

// 0 for a tree too large for the memory set aside, or with an operand that is not understood.
static int walk(walked *w, object *root, enum kind root_kind) {
    object *stack[MOST_LEAVES], *seen[2 * MOST_LEAVES];
    int32_t first[2 * MOST_LEAVES];
    int depth = 1, n_seen = 1;
    int32_t count = 0;
    w->leaves = w->n_repeats = 0;
    if (root_kind != NODE && root_kind != PLAIN_NODE)
        return add_leaf(w, root, root_kind);
    stack[0] = seen[0] = root;
    first[0] = 0;
    while (depth) {
        object *node = stack[--depth];
        int native = node->type == node_type;
        object *inputs = native ? NULL : slot(node, at.node_inputs);
        length n = native ? extra_of(node)->count : PyTuple_Size(inputs);
        if (n < 0)
            PyErr_Clear();
        if (n < 0 || (n == 0 && !add_leaf(w, node, PLAIN_NODE)))
            return 0;
        for (length i = 0; i < n; i++) {
            object *x = native ? extra_of(node)->operand[i] : PyTuple_GetItem(inputs, i);
            enum kind kind = kind_of(x);
            count++;
            if (kind == NUMBER) {
                if (!add_leaf(w, x, kind))
                    return 0;
                continue;
            }
            int k = 0;
            while (k < n_seen && seen[k] != x)
                k++;
            if (k < n_seen) {
                if (w->n_repeats == MOST_REPEATS)
                    return 0;
                w->repeats[2 * w->n_repeats] = count;
                w->repeats[2 * w->n_repeats++ + 1] = first[k];
                continue;
            }
            if (n_seen == 2 * MOST_LEAVES || depth == MOST_LEAVES || kind == FOREIGN)
                return 0;
            seen[n_seen] = x;
            first[n_seen++] = count;
            if (kind == TENSOR) {
                if (!add_leaf(w, x, kind))
                    return 0;
            } else {
                stack[depth++] = x;
            }
        }
    }
    return 1;
}

typedef struct span { int64_t address, start, stop; } span;

// A tensor's place in memory, which is kept in its slot `span` as bytes. NULL when it is no place of this process.
static const span *new_span(object *tensor) {
    object *found = slot(tensor, at.tensor_span);
    const length parts[3] = {at.tensor_address, at.tensor_start, at.tensor_stop};
    int64_t values[3];
    for (int i = 0; i < 3; i++)
        values[i] = PyLong_AsLongLong(slot(tensor, parts[i]));
    if (PyErr_Occurred()) {
        PyErr_Clear();
        return NULL;
    }
    object *made = PyBytes_FromStringAndSize((const char *)values, sizeof values);
    if (!made) {
        PyErr_Clear();
        return NULL;
    }
    *field(tensor, at.tensor_span) = made;
    drop(found);
    return data_of(made);
}

static inline const span *span_of(object *tensor) {
    object *found = slot(tensor, at.tensor_span);
    return found && found->type == py.bytes ? data_of(found) : new_span(tensor);
}

// -1 when some place is not known; else as `Statement.overlap` of graph/fuse.py. Fills in the places of the leaves.
static int overlap_of(const walked *w, object *target, const span *to, span *places) {
    int overlap = 0;
    for (int i = 0; i < w->leaves; i++) {
        if (w->kind[i] != TENSOR)
            continue;
        const span *from = span_of(w->leaf[i]);
        if (!from)
            return -1;
        places[i] = *from;
        if (from->start < to->stop && to->start < from->stop) {
            int same = from->address == to->address &&
                       slot(w->leaf[i], at.tensor_structure) == slot(target, at.tensor_structure);
            overlap = overlap > 2 - same ? overlap : 2 - same;
        }
    }
    return overlap;
}

// Operands of a recipe: the leaves, where those that are tensors begin, where the targets begin.
typedef struct operands {
    object *const *leaf;
    const span *place, *target;
} operands;

// A recipe's words: a head, then for each launch its address and counts, then (source, offset) for each pointer and
// (leaf, format, least, most) for each scalar. A source is a leaf, the arena, or TARGET - k for target k.
enum { ARENA = -1, TARGET = -2, FORMAT_FLOAT = 0, FORMAT_DOUBLE, FORMAT_INTEGER };
enum { MOST_LAUNCHES = 16, MOST_POINTERS = 128, MOST_SCALARS = 64 };
typedef struct { int64_t launches, arena_bytes, cost; } recipe_head;
typedef struct { int64_t launch, pointers, scalars; } recipe_launch;
typedef struct { int64_t source, offset; } recipe_pointer;
typedef struct { int64_t leaf, format, least, most; } recipe_scalar;

static const int64_t KEEP_LOCK_BELOW_NS = 20000;

typedef struct packed {
    tb_launch launch[MOST_LAUNCHES];
    void *pointer[MOST_POINTERS];
    int64_t scalar[MOST_SCALARS];
} packed;

static int number_to_word(const recipe_scalar *s, object *x, int64_t *word) {
    if (s->format == FORMAT_INTEGER) {
        int over;
        *word = PyLong_AsLongLongAndOverflow(x, &over);
        return !over && *word >= s->least && *word <= s->most;
    }
    double value = PyFloat_AsDouble(x);
    if (value == -1.0 && PyErr_Occurred()) {
        PyErr_Clear();
        return 0;
    }
    if (s->format == FORMAT_FLOAT)
        value = (double)(float)value;
    memcpy(word, &value, sizeof *word);
    return 1;
}

// 0 when a number does not fit: Python then says so.
static int pack(packed *p, const int64_t *words, const operands *o, char *arena) {
    const recipe_head *head = (const recipe_head *)words;
    words = (const int64_t *)(head + 1);
    void **pointer = p->pointer;
    int64_t *scalar = p->scalar;
    for (int64_t i = 0; i < head->launches; i++) {
        const recipe_launch *r = (const recipe_launch *)words;
        const recipe_pointer *from = (const recipe_pointer *)(r + 1);
        const recipe_scalar *number = (const recipe_scalar *)(from + r->pointers);
        p->launch[i] = *(const tb_launch *)(uintptr_t)r->launch;
        p->launch[i].ptr = pointer;
        p->launch[i].scalar = scalar;
        for (int64_t k = 0; k < r->pointers; k++, from++) {
            char *base = from->source >= 0      ? (char *)(uintptr_t)o->place[from->source].address
                         : from->source == ARENA ? arena
                                                 : (char *)(uintptr_t)o->target[TARGET - from->source].address;
            *pointer++ = base + from->offset;
        }
        for (int64_t k = 0; k < r->scalars; k++, number++)
            if (!number_to_word(number, o->leaf[number->leaf], scalar++))
                return 0;
        words = (const int64_t *)number;
    }
    return 1;
}

enum outcome { FAILED = -1, TO_PYTHON, DONE, UNKNOWN };

// Without the interpreter lock, with the backend's.
static enum outcome run_long(memo *m, const packed *p, int64_t launches) {
    object *locked = PyObject_CallFunctionObjArgs(m->acquire, NULL);
    if (!locked)
        return FAILED;
    Py_DecRef(locked);
    void *state = PyEval_SaveThread();
    runtime.run_list(p->launch, launches);
    PyEval_RestoreThread(state);
    object *released = PyObject_CallFunctionObjArgs(m->release, NULL);
    drop(released);
    return released ? DONE : FAILED;
}

// Runs a recipe. The caller holds the targets and the values, and with them all leaves.
static enum outcome follow(memo *m, object *recipe, const operands *o) {
    packed p;
    const int64_t *words = data_of(PyTuple_GetItem(recipe, 0));
    const recipe_head head = *(const recipe_head *)words;
    char *arena = head.arena_bytes ? runtime.alloc(head.arena_bytes) : NULL;
    if (head.arena_bytes && !arena)
        return TO_PYTHON;
    enum outcome outcome = pack(&p, words, o, arena) ? DONE : TO_PYTHON;
    if (outcome == DONE) {
        m->hits++;
        if (head.cost < KEEP_LOCK_BELOW_NS && !m->held)
            runtime.run_list(p.launch, head.launches);
        else
            outcome = run_long(m, &p, head.launches);
    }
    if (arena)
        runtime.free(arena, head.arena_bytes);
    return outcome;
}

// Whether the target may be written at all without Python's looking at it: see Backend._assign.
static inline int is_plain_target(object *target) {
    object *storage = slot(target, at.tensor_storage), *rounding = slot(target, at.tensor_rounding);
    return storage && storage->type == py.storage_class && slot(storage, at.storage_writable) == py.true_ &&
           (rounding == py.zero || rounding == py.false_);
}

// A statement as native code sees it.
typedef struct stated {
    object *target, *value, *root;  // root: the value's structure or number type
    walked w;
    span to, place[MOST_LEAVES];
    int overlap;
} stated;

// 0 when only Python can run it.
static int examine(stated *s, object *target, object *value) {
    enum kind kind = kind_of(value);
    if (kind == FOREIGN || !is_plain_target(target))
        return 0;
    const span *to = span_of(target);
    if (!to || !walk(&s->w, value, kind))
        return 0;
    s->target = target;
    s->value = value;
    s->to = *to;
    s->overlap = overlap_of(&s->w, target, to, s->place);
    s->root = key_of(value);
    return s->overlap >= 0 && s->root;
}

// Runs a statement if it is known. If not, `key` is what to remember it by (its repeats are those of `s`).
static enum outcome run_known(memo *m, const stated *s, statement *key) {
    object *structure = slot(s->target, at.tensor_structure);
    *key = (statement){structure, s->root, (int32_t *)s->w.repeats, s->w.n_repeats, s->overlap, NULL};
    if (!m->n_statements)
        return UNKNOWN;
    object *recipe = find_statement(m->statements, m->statement_places, key)->recipe;
    if (!recipe)
        return UNKNOWN;
    if (recipe == py.none)
        return TO_PYTHON;
    const operands o = {s->w.leaf, s->place, &s->to};
    Py_IncRef(recipe);
    Py_IncRef(&m->head);
    enum outcome outcome = follow(m, recipe, &o);
    Py_DecRef(&m->head);
    Py_DecRef(recipe);
    return outcome;
}

// Python runs it for the first time, and says how to run it again: a recipe, None when only Python can, NotImplemented
// when it is not to be remembered.
static int run_first(object *target, object *value, const statement *key, memo *m) {
    Py_IncRef(&m->head);
    Py_IncRef(key->target);
    Py_IncRef(key->root);
    object *recipe = PyObject_CallFunctionObjArgs(py.learn, target, value, NULL);
    if (recipe && recipe != py.not_implemented)
        remember_statement(m, key, recipe);
    drop(recipe);
    Py_DecRef(key->root);
    Py_DecRef(key->target);
    Py_DecRef(&m->head);
    return recipe ? 0 : -1;
}

// Groups --------------------------------------------------------------------------------------------------------------
//
// Inside `with be.fuse():` statements wait, in each thread for itself. Which of them run together, Python decides
// (statements.py); here its answers are remembered as steps between states. A state stands for the statements of a
// group: their structures, repeats and overlaps, and which of their tensors are the same view. (state, statement) leads
// to the state of the group with the statement, or to APART: the group runs first. Each state has a recipe.
// What is not known is handed to Python's group of the thread, where later statements of the group follow it; native
// code keeps account of the state, and takes over again once the group has run.

enum { MOST_WAITING = 16, MOST_SEEN = 128, MOST_WAITING_LEAVES = 256 };

typedef struct group {
    object *target[MOST_WAITING], *value[MOST_WAITING], *leaf[MOST_WAITING_LEAVES];  // all kept
    span to[MOST_WAITING], place[MOST_WAITING_LEAVES];
    int statements, leaves;
} group;

// A view that statements of a group read or write.
typedef struct seen_view {
    span at;
    object *structure;  // to compare: the group keeps it
    int written;
} seen_view;

// A thread in a `fuse` block.
typedef struct fusing {
    struct fusing *next;
    unsigned long thread;
    int depth;
    int in_python;  // what waits, waits in Python's group, not in `waiting`
    int64_t count;  // statements that wait
    int64_t state;
    seen_view seen[MOST_SEEN];
    int n_seen;
    group *waiting, *spare;
} fusing;

static void let_go(group *g) {
    int statements = g->statements, leaves = g->leaves;
    g->statements = g->leaves = 0;
    for (int i = 0; i < leaves; i++)
        Py_DecRef(g->leaf[i]);
    for (int i = 0; i < statements; i++) {
        Py_DecRef(g->target[i]);
        Py_DecRef(g->value[i]);
    }
}

static void free_fusing(fusing *list) {
    for (fusing *f = list; (f = list);) {
        list = f->next;
        let_go(f->waiting);
        free(f->waiting);
        free(f->spare);
        free(f);
    }
}

static inline fusing *own_fusing(const memo *m) {
    unsigned long thread = PyThread_get_thread_ident();
    fusing *f = m->fusing;
    while (f && f->thread != thread)
        f = f->next;
    return f;
}

static void begin_group(fusing *f) {
    f->count = 0;
    f->n_seen = 0;
    f->state = EMPTY;
    f->in_python = 0;
}

// A statement beside the group that waits: the key to look up, and how many views the group has with it.
typedef struct form {
    int64_t key[KEY_HEAD + MOST_REPEATS + 1 + MOST_LEAVES];
    int64_t words;
    int n_seen;
} form;

// The number of a view among those of the group and, behind them, the statement's; -1 when there are too many. `apart`
// becomes 0 when what is written shares memory with another view of it.
static int number_of(fusing *f, int *n, const span *view, object *structure, int writes, int *apart) {
    int found = -1;
    for (int i = 0; i < *n; i++) {
        const seen_view *x = &f->seen[i];
        if (x->at.address == view->address && x->structure == structure)
            found = i;
        else if (i < f->n_seen && (writes || x->written) && x->at.start < view->stop && view->start < x->at.stop)
            *apart = 0;
    }
    if (found >= 0 || *n == MOST_SEEN)
        return found;
    f->seen[*n] = (seen_view){*view, structure, 0};
    return (*n)++;
}

// 0 when nobody keeps account of the group, or it is too large.
static int make_form(fusing *f, const stated *s, form *new) {
    if (f->state == UNTRACKED)
        return 0;
    object *structure = slot(s->target, at.tensor_structure);
    int64_t *word = new->key + KEY_HEAD;
    int apart = 1;
    new->n_seen = f->n_seen;
    int64_t number = *word++ = number_of(f, &new->n_seen, &s->to, structure, 1, &apart);
    for (int i = 0; i < s->w.n_repeats; i++)
        *word++ = (int64_t)s->w.repeats[2 * i] << 32 | s->w.repeats[2 * i + 1];
    for (int i = 0; number >= 0 && i < s->w.leaves; i++)
        if (s->w.kind[i] == TENSOR)
            number = *word++ = number_of(f, &new->n_seen, &s->place[i], structure_of(s->w.leaf[i], TENSOR), 0, &apart);
    new->words = word - new->key;
    new->key[KEY_STATE] = f->state;
    new->key[KEY_TARGET] = (int64_t)(uintptr_t)structure;
    new->key[KEY_ROOT] = (int64_t)(uintptr_t)s->root;
    new->key[KEY_OVERLAP] = s->overlap << 1 | apart;
    new->key[KEY_REPEATS] = s->w.n_repeats;
    return number >= 0;
}

static inline int64_t known_joining(const memo *m, const form *new) {
    return m->n_joins ? find_joining(m->joins, m->join_places, new->key, new->words)->next : EMPTY;
}

// The group has the statement now.
static void enter(fusing *f, const form *new, int64_t state) {
    f->n_seen = new->n_seen;
    f->seen[new->key[KEY_HEAD]].written = 1;
    f->state = state;
}

static int hold(group *g, const stated *s) {
    if (g->statements == MOST_WAITING || g->leaves + s->w.leaves > MOST_WAITING_LEAVES)
        return 0;
    g->target[g->statements] = kept(s->target);
    g->value[g->statements] = kept(s->value);
    g->to[g->statements++] = s->to;
    for (int i = 0; i < s->w.leaves; i++) {
        g->leaf[g->leaves] = kept(s->w.leaf[i]);
        g->place[g->leaves++] = s->place[i];
    }
    return 1;
}

static int give_to_python(memo *m, group *g) {
    object *pairs = PyTuple_New(2 * g->statements);
    for (int i = 0; pairs && i < g->statements; i++) {
        PyTuple_SetItem(pairs, 2 * i, kept(g->target[i]));
        PyTuple_SetItem(pairs, 2 * i + 1, kept(g->value[i]));
    }
    object *done = pairs ? PyObject_CallFunctionObjArgs(m->adopt, pairs, NULL) : NULL;
    drop(pairs);
    drop(done);
    return done ? 0 : -1;
}

// Python runs its group, and says how to run its like.
static enum outcome run_in_python(memo *m, int64_t state) {
    object *recipe = PyObject_CallFunctionObjArgs(m->flush, NULL);
    object **place = recipe_of_state(m, state);
    if (recipe && recipe != py.not_implemented && place && !*place)
        *place = kept(recipe);
    drop(recipe);
    return recipe ? DONE : FAILED;
}

static enum outcome run_group(memo *m, group *g, int64_t state) {
    object **place = recipe_of_state(m, state), *recipe = place ? *place : NULL;
    enum outcome outcome = TO_PYTHON;
    if (recipe && recipe != py.none) {
        const operands o = {g->leaf, g->place, g->to};
        Py_IncRef(recipe);
        outcome = follow(m, recipe, &o);
        Py_DecRef(recipe);
    }
    if (outcome == TO_PYTHON)
        outcome = give_to_python(m, g) < 0 ? FAILED : run_in_python(m, state);
    return outcome;
}

// Runs what waits in the thread. What is stated meanwhile, by finalizers, waits in a group of its own.
static int run_waiting(memo *m, fusing *f) {
    if (!f->count)
        return 0;
    group *g = f->waiting, *next = f->spare ? f->spare : calloc(1, sizeof *next);
    if (!next) {
        PyErr_NoMemory();
        return -1;
    }
    int64_t state = f->state;
    int in_python = f->in_python;
    f->waiting = next;
    f->spare = NULL;
    begin_group(f);
    Py_IncRef(&m->head);
    enum outcome outcome = in_python ? run_in_python(m, state) : run_group(m, g, state);
    let_go(g);
    if (f->spare)
        free(g);
    else
        f->spare = g;
    Py_DecRef(&m->head);
    return outcome == DONE ? 0 : -1;
}

// What became of a statement that Python took, by how many wait in its group now.
static void keep_account(memo *m, fusing *f, const stated *s, const form *new, int64_t before, int64_t count) {
    form first;
    if (count == 1 && before) {
        if (new)
            remember_joining(m, new->key, new->words, 0);
        f->n_seen = 0;
        f->state = EMPTY;
        new = s && make_form(f, s, &first) ? &first : NULL;
    }
    if (count == 0)
        begin_group(f);
    else if (new && (count == 1 || count == before + 1))
        enter(f, new, remember_joining(m, new->key, new->words, 1));
    else
        f->state = UNTRACKED;
    f->count = count;
}

static int state_in_python(memo *m, fusing *f, object *target, object *value, const stated *s, const form *new) {
    int64_t before = f->count;
    Py_IncRef(&m->head);
    int done = f->in_python || !before ? 0 : give_to_python(m, f->waiting);
    let_go(f->waiting);
    f->in_python = 1;
    object *waiting = done < 0 ? NULL : PyObject_CallFunctionObjArgs(m->join, target, value, NULL);
    if (waiting) {
        keep_account(m, f, s, new, before, PyLong_AsLongLong(waiting));
        Py_DecRef(waiting);
    } else {
        f->state = UNTRACKED;
        f->count = before + 1;  // or fewer: to run none is nothing
    }
    Py_DecRef(&m->head);
    return waiting ? 0 : -1;
}

// A statement in a `fuse` block; `s` is NULL when only Python understands it.
static int state_in_block(memo *m, fusing *f, object *target, object *value, const stated *s) {
    form new;
    int formed = s && make_form(f, s, &new);
    int64_t next = formed ? known_joining(m, &new) : EMPTY;
    if (next == APART) {
        if (run_waiting(m, f) < 0)
            return -1;
        formed = make_form(f, s, &new);
        next = formed ? known_joining(m, &new) : EMPTY;
    }
    if (next <= 0 || f->in_python || !hold(f->waiting, s))
        return state_in_python(m, f, target, value, s, formed ? &new : NULL);
    enter(f, &new, next);
    f->count++;
    return 0;
}

static object *memo_begin(object *self, object *unused) {
    memo *m = (memo *)self;
    fusing *f = own_fusing(m);
    if (!f) {
        f = m->idle;
        if (f) {
            m->idle = f->next;
        } else {
            f = calloc(1, sizeof *f);
            group *g = calloc(1, sizeof *g);
            if (!f || !g) {
                free(f);
                free(g);
                return PyErr_NoMemory();
            }
            f->waiting = g;
        }
        f->thread = PyThread_get_thread_ident();
        f->depth = 0;
        begin_group(f);
        f->next = m->fusing;
        m->fusing = f;
    }
    f->depth++;
    return kept(py.none);
}

static object *memo_end(object *self, object *unused) {
    memo *m = (memo *)self;
    fusing *f = own_fusing(m);
    if (!f) {
        PyErr_SetString(PyExc_RuntimeError, "be.fuse(): a block ends in the thread in which it began");
        return NULL;
    }
    if (--f->depth)
        return kept(py.none);
    fusing **place = &m->fusing;
    while (*place != f)
        place = &(*place)->next;
    *place = f->next;
    int done = run_waiting(m, f);
    f->next = m->idle;
    m->idle = f;
    return done < 0 ? NULL : kept(py.none);
}

static object *memo_flush(object *self, object *unused) {
    memo *m = (memo *)self;
    fusing *f = m->fusing ? own_fusing(m) : NULL;
    return f && run_waiting(m, f) < 0 ? NULL : kept(py.none);
}

static object *memo_set_group(object *self, object *functions) {
    memo *m = (memo *)self;
    object **own[3] = {&m->join, &m->adopt, &m->flush};
    for (int i = 0; i < 3; i++) {
        object *function = PyTuple_GetItem(functions, i);
        if (!function)
            return NULL;
        *own[i] = kept(function);
    }
    m->first_state = EMPTY + 1;
    return kept(py.none);
}

// Assignment ----------------------------------------------------------------------------------------------------------

static int assign_whole(object *target, object *value, object *key) {
    stated s;
    statement known;
    memo *m = memo_of(slot(target, at.tensor_structure));
    int examined = m && examine(&s, target, value);
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

static inline int is_whole(object *key) {
    if (key->type != py.slice)
        return 0;
    object **parts = field(key, at.slice_start);
    return parts[0] == py.none && parts[1] == py.none && parts[2] == py.none;
}

static int set_item(object *self, object *key, object *value) {
    if (!value) {
        PyErr_SetString(PyExc_AttributeError, "__delitem__");
        return -1;
    }
    if (is_whole(key))
        return assign_whole(self, value, key);
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
    static method_def methods[] = {{"_assign", assign, ONE_ARGUMENT, "Set every element, and return the tensor."}, {0}};
    type_slot slots[40] = {{0}};
    int n = operator_slots(slots);
    slots[n++] = (type_slot){MP_ASS_SUBSCRIPT, set_item};
    slots[n++] = (type_slot){TP_METHODS, methods};
    return make_type("tensorbackend.backends.launcher.Operands", sizeof(object), BASE_TYPE, slots, NULL);
}

static object *make_memo_type(void) {
    static method_def methods[] = {
        {"clear", memo_clear, NO_ARGUMENTS, "Forget everything."},
        {"counts", memo_counts, NO_ARGUMENTS, "Structures and statements held, and statements run."},
        {"hold", memo_hold, ONE_ARGUMENT, "The backend's lock is held so many times more."},
        {"set_lock", memo_set_lock, ONE_ARGUMENT, "Take the acquire and release methods of the backend's lock."},
        {"set_group", memo_set_group, ONE_ARGUMENT, "Take the functions `join`, `adopt` and `flush` of a fuse block."},
        {"begin", memo_begin, NO_ARGUMENTS, "A fuse block of this thread begins."},
        {"end", memo_end, NO_ARGUMENTS, "A fuse block of this thread ends."},
        {"flush", memo_flush, NO_ARGUMENTS, "Run the statements of this thread that wait."},
        {0}};
    type_slot slots[] = {{TP_DEALLOC, memo_free}, {TP_TRAVERSE, memo_traverse}, {TP_CLEAR, memo_forget},
                         {TP_METHODS, methods}, {0, 0}};
    return make_type("tensorbackend.backends.launcher.Memo", sizeof(memo), COLLECTED, slots, NULL);
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
    for (int i = 0; i < 5; i++)
        if (!(part[i] = PyTuple_GetItem(facts, i)))
            return NULL;
    object **objects = (object **)&py;
    for (length i = 0; i < (length)(sizeof py / sizeof(object *)); i++)
        if (!(objects[i] = PyTuple_GetItem(part[0], i)))
            return NULL;
    length *offsets = (length *)&at;
    for (length i = 0; i < (length)(sizeof at / sizeof(length)); i++) {
        object *offset = PyTuple_GetItem(part[1], i);
        if (!offset)
            return NULL;
        offsets[i] = (length)PyLong_AsLongLong(offset);
    }
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
    object *types = PyTuple_New(3);
    if (!node_type || !operands_type || !memo_type || !method_type || !types)
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
