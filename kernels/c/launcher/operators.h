// SPDX-License-Identifier: Apache-2.0
// launcher/operators.h — operators and methods: nodes and trees of known structure, made without Python
#ifndef TB_LAUNCHER_OPERATORS_H
#define TB_LAUNCHER_OPERATORS_H

#include "memo.h"

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

enum { LT, LE, EQ, NE, GT, GE, ADD, SUB, MUL, TRUEDIV, FLOORDIV, MOD, LSHIFT, RSHIFT, AND, OR, XOR, POW, NEG, ABS, INVERT,
       MATMUL };

// Whether an integer type may not hold an operand of a comparison: then Python finds another one of the same answer.
static inline int may_be_beyond(object *x) {
    return x->type == py.int_ && (unsigned long long)PyLong_AsLongLongAndOverflow(x, &(int){0}) > 127;
}

// What tells powers apart whose exponent is a number: one of the small integers that Python keeps, where twice that number
// is a small one. NULL for others and for other ops.
static inline object *exponent_of(object *op, object *x) {
    if (op != operators[POW].op || !(x->type == py.int_ || x->type == py.float_))
        return NULL;
    double value = PyFloat_AsDouble(x), twice = 2 * value;
    if (value == -1 && PyErr_Occurred()) {  // an integer beyond all doubles
        PyErr_Clear();
        return NULL;
    }
    if (!(twice >= -8 && twice <= 8) || twice != (int)twice)
        return NULL;
    object *number = PyLong_FromLongLong((int)twice + 8);
    Py_DecRef(number);  // Python keeps those from -5 to 256
    return number;
}

static inline object *binary(int number, object *a, object *b) {
    object *const operands[2] = {a, b};
    object *const key[OPERANDS + 1] = {operators[number].op, key_of(a), key_of(b), exponent_of(operators[number].op, b)};
    int a_owns = key[1] && key[1] != a->type;
    if (key[1] && key[2] && (number > GE || !(may_be_beyond(a) || may_be_beyond(b)))) {
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
    int compares;  // whether the op is a comparison
} method;

// `count` arguments by place as a tuple, and those by name as a dictionary (NULL: there are none). 0 on failure.
static int as_objects(object *const *arguments, length count, object *names, object **all, object **named) {
    *all = PyTuple_New(count);
    *named = names ? PyDict_New() : NULL;
    int good = *all && (*named || !names);
    for (length i = 0; good && i < count; i++)
        PyTuple_SetItem(*all, i, kept(arguments[i]));
    for (length i = 0; good && *named && i < PyTuple_Size(names); i++)
        good = PyDict_SetItem(*named, PyTuple_GetItem(names, i), arguments[count + i]) == 0;
    return good;
}

// The Python method with `count` arguments by place and more by name. (PyObject_Vectorcall is no function in 3.10.)
static object *call_python(object *python, object *const *arguments, length count, object *names) {
    object *all, *named, *made = NULL;
    if (as_objects(arguments, count, names, &all, &named))
        made = PyObject_Call(python, all, named);
    drop(all);
    drop(named);
    return made;
}

static int is_comparison(const object *op) {
    for (int i = LT; i <= GE; i++)
        if (operators[i].op == op)
            return 1;
    return 0;
}

static object *method_call(object *self, object *const *arguments, size_t count, object *names) {
    const method *f = (const method *)self;
    object *key[OPERANDS + 1] = {f->op};
    length by_place = (length)(count & ARGUMENT_COUNT);
    int n = (int)f->arity, known = !names && by_place == n;
    for (int i = 0; known && i < n; i++)
        known = (key[i + 1] = key_of(arguments[i])) != NULL;
    if (known && n == 2)
        key[3] = exponent_of(f->op, arguments[1]);
    int beyond = 0;
    for (int i = 0; known && f->compares && i < n; i++)
        beyond |= may_be_beyond(arguments[i]);
    object *node = known && !beyond ? known_node((memo *)f->memo, key, arguments, n) : NULL;
    if (node)
        return node;
    object *made = call_python(f->python, arguments, by_place, names);
    return known ? adopt(made, key, arguments, n) : made;
}

enum { MOST_PARTS = 32 };
enum { STATIC_ARGUMENTS = 0, RUNS_AT_ONCE = -1, OPERANDS_ONLY = -2 };  // what stands for the arity of methods of no op

// A tree like the one that a template was made of. Its words: the number of nodes, then for each its structure, the
// number of its operands, and these: -1 for the first argument, -2 for the second and so on, the number of an earlier
// node, or the address of a constant.
static object *instantiate(object *template, object *const *arguments) {
    const int64_t *words = data_of(PyTuple_GetItem(template, 0));
    object *parts[MOST_PARTS], *made = NULL;
    int total = (int)*words++, n = 0;
    kept(template);
    for (; n < total; n++) {
        object *operands[OPERANDS];
        int count = (int)words[1];
        for (int i = 0; i < count; i++) {
            int64_t word = words[2 + i];
            operands[i] = word < 0 ? arguments[-1 - word] : word < MOST_PARTS ? parts[word] : (object *)word;
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

// memo.grow(values, nodes, draws) appends the nodes of graph/templates.py to a list: of each the structure, where in the
// list its operands are, and which of the draws is its number (-1: none).
static object *memo_grow(object *self, object *const *arguments, length given) {
    (void)self;
    length total = given == 3 ? PyList_Size(arguments[1]) : -1;
    for (length i = 0; i < total; i++) {
        object *entry = PyList_GetItem(arguments[1], i), *structure = PyTuple_GetItem(entry, 0);
        object *places = PyTuple_GetItem(entry, 1), *operands[OPERANDS], *draw = NULL;
        length count = structure && places ? PyTuple_Size(places) : -1;
        if (count < 0 || count > OPERANDS)
            return NULL;
        for (int k = 0; k < count; k++)
            if (!(operands[k] = PyList_GetItem(arguments[0], PyLong_AsLongLong(PyTuple_GetItem(places, k)))))
                return NULL;
        length source = PyLong_AsLongLong(PyTuple_GetItem(entry, 2));
        if (source >= 0 && !(draw = PyList_GetItem(arguments[2], source)))
            return NULL;
        object *node = node_new(structure, operands, (int)count);
        if (node && draw)
            *field(node, at.node_draw) = kept(draw);
        int failed = !node || PyList_Append(arguments[0], node) < 0;
        drop(node);
        if (failed)
            return NULL;
    }
    return total < 0 ? NULL : kept(py.none);
}

// Arguments that decide the form of a tree by what they are: None, truth values, and integers as small as axes.
static inline int is_static(object *x) {
    if (x == py.none || x == py.true_ || x == py.false_)
        return 1;
    return x->type == py.int_ && (unsigned long long)PyLong_AsLongLongAndOverflow(x, &(int){0}) + 4 <= 68;
}

// The key of a tree that a method makes: of one operand and at most one more argument that is static, or of operands
// only, of which the last may have a name. 0 for other calls, which are Python's.
static int tree_key(object **key, const method *f, object *const *arguments, length by_place, object *names) {
    length named = names ? PyTuple_Size(names) : 0, all = by_place + named;
    int only = f->arity == OPERANDS_ONLY;
    key[0] = f->op;
    if (by_place < 1 || named > 1 || all > (only ? OPERANDS - named : 2))
        return 0;
    if (!only && all == 2 && !is_static(arguments[1]))
        return 0;
    for (length i = 0; i < all; i++)
        if (!(key[i + 1] = i && !only ? arguments[i] : key_of(arguments[i])))
            return 0;
    if (named)
        key[OPERANDS] = PyTuple_GetItem(names, 0);
    return key[1] != arguments[0]->type && memo_of(key[1]) == (memo *)f->memo;
}

static object *tree_call(object *self, object *const *arguments, size_t count, object *names) {
    const method *f = (const method *)self;
    memo *m = (memo *)f->memo;
    object *key[OPERANDS + 1] = {NULL}, *all = NULL, *named = NULL;
    length by_place = (length)(count & ARGUMENT_COUNT);
    int known = tree_key(key, f, arguments, by_place, names);
    object *template = known && m->n_nodes ? find_node(m->nodes, m->node_places, key)->result : NULL;
    if (template && template != py.none)
        return instantiate(template, arguments);
    object *made = call_python(f->python, arguments, by_place, names);
    if (!made || !known || template)
        return made;
    length operands = f->arity == OPERANDS_ONLY ? by_place + (names ? PyTuple_Size(names) : 0) : 1;
    template = as_objects(arguments, operands, NULL, &all, &named)
                   ? PyObject_CallFunctionObjArgs(py.template, all, made, NULL) : NULL;
    drop(all);
    if (!template) {
        Py_DecRef(made);
        return NULL;
    }
    if (template != py.not_implemented)
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

static object *call_again(object *self, object *const *arguments, size_t count, object *names);

// (op or function, bound Python method, memo, arity) -> Method. The arity is that of an op, STATIC_ARGUMENTS or
// OPERANDS_ONLY for a method that makes a tree, RUNS_AT_ONCE for one that runs (calls.h).
object *tb_launcher_method(object *parts) {
    method *f = (method *)PyType_GenericAlloc(method_type, 0);
    if (!f)
        return NULL;
    f->op = kept(PyTuple_GetItem(parts, 0));
    f->python = kept(PyTuple_GetItem(parts, 1));
    f->memo = kept(PyTuple_GetItem(parts, 2));
    f->arity = (length)PyLong_AsLongLong(PyTuple_GetItem(parts, 3));
    f->compares = is_comparison(f->op);
    f->call = f->arity > 0 ? method_call : f->arity == RUNS_AT_ONCE ? call_again : tree_call;
    return &f->head;
}

#endif
