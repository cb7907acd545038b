// SPDX-License-Identifier: Apache-2.0
// launcher/groups.h — statements of a `with be.fuse():` block that run together
//
// Inside `with be.fuse():` statements wait, in each thread for itself. Which of them run together, Python decides
// (statements.py); here its answers are remembered as steps between states. A state stands for the statements of a
// group: their structures, repeats and overlaps, which nodes their trees have in common, and which of their tensors are
// the same view. (state, statement) leads to the state of the group with the statement, or to APART: the group runs
// first. Each state has a recipe.
// What is not known is handed to Python's group of the thread, where later statements of the group follow it; native
// code keeps account of the state, and takes over again once the group has run.
#ifndef TB_LAUNCHER_GROUPS_H
#define TB_LAUNCHER_GROUPS_H

#include "statements.h"

enum { MOST_WAITING = 16, MOST_SEEN = 128, MOST_WAITING_LEAVES = 256, NODE_PLACES = 1024 };

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

// A node of a group's trees, and where the first of them that has it has it. Table of NODE_PLACES, at most half full.
typedef struct seen_node {
    const object *node;  // to compare: the group keeps it
    int64_t group;       // a place of another group than the one that waits is free
    int64_t where;       // statement << 16 | place
} seen_node;

// A thread in a `fuse` block. Its number is no other thread's later, as its address may be.
typedef struct fusing {
    struct fusing *next;
    uint64_t thread;
    int depth;
    int in_python;  // what waits, waits in Python's group, not in `waiting`
    int joining;    // how many statements or groups Python is taking: one, and what comes meanwhile, of finalizers and of
                    // handlers of signals, which is for Python too: it follows what Python has not run yet
    int64_t joined;  // how many it has begun to take
    int64_t count;  // statements that wait
    int64_t state;
    int64_t group;  // the number of the group that waits
    seen_view seen[MOST_SEEN];
    seen_node node[NODE_PLACES];
    int n_seen, nodes;
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
    uint64_t thread = PyThreadState_GetID(PyThreadState_Get());
    fusing *f = m->fusing;
    while (f && f->thread != thread)
        f = f->next;
    return f;
}

static void begin_group(fusing *f) {
    f->group++;
    f->count = 0;
    f->n_seen = f->nodes = 0;
    f->state = EMPTY;
    f->in_python = f->joining > 0;
}

// A statement beside the group that waits: the key to look up, and how many views the group has with it.
typedef struct form {
    int64_t key[KEY_HEAD + MOST_REPEATS + MOST_NODES + 1 + MOST_LEAVES];
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
        else if (i < f->n_seen && (writes || x->written) && share_memory(&x->at, x->structure, view, structure))
            *apart = 0;
    }
    if (found >= 0 || *n == MOST_SEEN)
        return found;
    f->seen[*n] = (seen_view){*view, structure, 0};
    return (*n)++;
}

// The place of a node among those of the group, or a free one for it.
static inline seen_node *place_of(fusing *f, const object *node) {
    for (uint64_t i = mixed(0, (uintptr_t)node);; i++) {
        seen_node *found = &f->node[i % NODE_PLACES];
        if (found->group != f->group || found->node == node)
            return found;
    }
}

// Whether each statement that runs a node has numbers of its own: a source without a number (and, for all that is known
// here, one of positions).
static inline int draws_anew(object *node) {
    length operands = node->type == node_type ? extra_of(node)->count : PyTuple_Size(slot(node, at.node_inputs));
    return operands == 0 && !slot(node, at.node_draw);
}

// 0 when nobody keeps account of the group, or it is too large. Notes the statement's nodes as those of the group: when
// it does not join, the group ends, or nobody keeps account of it any more.
static int make_form(fusing *f, const stated *s, form *new) {
    if (f->state == UNTRACKED || f->nodes + s->w.nodes > NODE_PLACES / 2)
        return 0;
    object *structure = slot(s->target, at.tensor_structure);
    int64_t *word = new->key + KEY_HEAD;
    int apart = 1;
    new->n_seen = f->n_seen;
    int64_t number = *word++ = number_of(f, &new->n_seen, &s->to, structure, 1, &apart);
    for (int i = 0; i < s->w.n_repeats; i++)
        *word++ = (int64_t)s->w.repeats[2 * i] << 32 | s->w.repeats[2 * i + 1];
    int64_t shared = 0, anew = 0;
    for (int i = 0; i < s->w.nodes; i++) {
        seen_node *found = place_of(f, s->w.node[i]);
        if (found->group == f->group) {
            word[shared++] = (int64_t)s->w.place[i] << 32 | found->where;
            anew |= draws_anew(s->w.node[i]);
        } else
            *found = (seen_node){s->w.node[i], f->group, f->count << 16 | s->w.place[i]};
    }
    f->nodes += s->w.nodes - (int)shared;
    word += shared;
    for (int i = 0; number >= 0 && i < s->w.leaves; i++)
        if (s->w.kind[i] == TENSOR)
            number = *word++ = number_of(f, &new->n_seen, &s->place[i], structure_of(s->w.leaf[i], TENSOR), 0, &apart);
    new->words = word - new->key;
    new->key[KEY_STATE] = f->state;
    new->key[KEY_TARGET] = (int64_t)(uintptr_t)structure;
    new->key[KEY_ROOT] = (int64_t)(uintptr_t)s->root;
    new->key[KEY_OVERLAP] = s->overlap << 2 | anew << 1 | apart;
    new->key[KEY_REPEATS] = s->w.n_repeats;
    new->key[KEY_SHARED] = shared;
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
    f->count++;
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

// No collection comes meanwhile: what a finalizer states or reads would be ahead of what has been stated before.
static int give_to_python(memo *m, group *g) {
    int collects = PyGC_Disable();
    object *pairs = PyTuple_New(2 * g->statements);
    for (int i = 0; pairs && i < g->statements; i++) {
        PyTuple_SetItem(pairs, 2 * i, kept(g->target[i]));
        PyTuple_SetItem(pairs, 2 * i + 1, kept(g->value[i]));
    }
    object *done = pairs ? PyObject_CallFunctionObjArgs(m->adopt, pairs, NULL) : NULL;
    drop(pairs);
    drop(done);
    if (collects)
        PyGC_Enable();
    return done ? 0 : -1;
}

// Python runs its group, and says how to run its like. An interrupt may come before it has begun: then it is asked
// again, since nobody else would run the group.
static enum outcome run_in_python(memo *m, int64_t state) {
    object *recipe = PyObject_CallFunctionObjArgs(m->flush, NULL), *error[3];
    if (!recipe) {
        PyErr_Fetch(&error[0], &error[1], &error[2]);
        drop(PyObject_CallFunctionObjArgs(m->flush, NULL));
        PyErr_Restore(error[0], error[1], error[2]);
    }
    object **place = recipe_of_state(m, state);
    if (recipe && recipe != py.not_implemented && place && !*place)
        *place = kept(recipe);
    drop(recipe);
    return recipe ? DONE : FAILED;
}

static enum outcome run_group(memo *m, const group *g, int64_t state) {
    object **place = recipe_of_state(m, state), *recipe = place ? *place : NULL;
    if (!recipe || recipe == py.none)
        return TO_PYTHON;
    const operands o = {g->leaf, g->place, g->to};
    return follow(m, recipe, &o);
}

// Runs what waits in the thread. What is stated meanwhile waits in a group of its own.
static int run_waiting(memo *m, fusing *f) {
    if (!f->count)
        return 0;
    group *g = f->waiting, *next = f->spare ? f->spare : calloc(1, sizeof *next);
    if (!next) {
        PyErr_NoMemory();
        return -1;
    }
    int64_t state = f->joining ? UNTRACKED : f->state;
    int in_python = f->in_python;
    f->waiting = next;
    f->spare = NULL;
    begin_group(f);
    Py_IncRef(&m->head);
    enum outcome outcome = in_python ? TO_PYTHON : run_group(m, g, state);
    if (outcome == TO_PYTHON) {
        f->joining++;
        f->in_python = 1;
        outcome = in_python || !give_to_python(m, g) ? run_in_python(m, state) : FAILED;
        f->joining--;
        f->in_python = f->count > 0 || f->joining;
    }
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
        begin_group(f);
        new = s && make_form(f, s, &first) ? &first : NULL;
    }
    if (count == 0)
        begin_group(f);
    else if (new && (count == 1 || count == before + 1))
        enter(f, new, remember_joining(m, new->key, new->words, 1));
    else
        f->state = UNTRACKED;
    f->count = count;
    f->in_python = count > 0 || f->joining;
}

static int state_in_python(memo *m, fusing *f, object *target, object *value, const stated *s, const form *new) {
    int64_t before = f->count, turn = ++f->joined;
    int waits_here = before && !f->in_python, done = 0;
    Py_IncRef(&m->head);
    f->in_python = 1;
    f->joining++;
    if (waits_here) {
        done = give_to_python(m, f->waiting);
        let_go(f->waiting);
    }
    object *waiting = done < 0 ? NULL : PyObject_CallFunctionObjArgs(m->join, target, value, NULL);
    f->joining--;
    if (f->joined != turn)  // others have come in between: nobody knows what the group is
        s = NULL, new = NULL;
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
        f->thread = PyThreadState_GetID(PyThreadState_Get());
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
    if (f->depth > 1) {
        f->depth--;
        return kept(py.none);
    }
    int done = run_waiting(m, f);
    object *error[3];
    PyErr_Fetch(&error[0], &error[1], &error[2]);
    while (f->count)  // what finalizers and handlers have stated meanwhile
        if (run_waiting(m, f) < 0)
            PyErr_Clear();
    PyErr_Restore(error[0], error[1], error[2]);
    fusing **place = &m->fusing;
    while (*place != f)
        place = &(*place)->next;
    *place = f->next;
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

#endif
