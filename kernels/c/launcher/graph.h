// SPDX-License-Identifier: Apache-2.0
// launcher/graph.h — the outputs of a differentiable function as variables of the graph
//
// memo.link(function, variables, outputs, inputs kept, outputs kept) is what `FunctionNode._linked` does where a graph is
// recorded: it makes variables of arrays, with nodes whose creator is the function, and keeps the arrays that the function
// retains. What variables and their nodes are is told by memo.tell_graph; the first time counts for the process.
#ifndef TB_LAUNCHER_GRAPH_H
#define TB_LAUNCHER_GRAPH_H

#include "nodes.h"

static struct {
    object *variable_class, *node_class;  // Python's classes; no variable class: nothing was told
    object *inputs, *rank, *outputs, *output_data, *node, *shape, *dtype;  // names of attributes
} graph;

static struct {
    length variable_data, variable_node, variable_grad, variable_requires_grad, variable_name;
    length node_creator, node_rank, node_data, node_shape, node_dtype, node_requires_grad, node_name, node_variable;
    length structure_shape, structure_dtype;
} in_graph;

// memo.tell_graph(((classes and names), (offsets)))
static object *memo_tell_graph(object *self, object *facts) {
    (void)self;
    if (graph.variable_class)
        return kept(py.none);
    object *part[2];
    if (!read_objects(facts, part, 2) || !read_lengths(part[1], (length *)&in_graph, sizeof in_graph / sizeof(length))
        || !read_objects(part[0], (object **)&graph, sizeof graph / sizeof(object *))) {
        graph.variable_class = NULL;
        return NULL;
    }
    Py_IncRef(facts);  // for ever, and with it all that was borrowed above
    return kept(py.none);
}

static object *variable_of(object *data) {
    object *made = PyType_GenericAlloc(graph.variable_class, 0);
    if (!made)
        return NULL;
    *field(made, in_graph.variable_data) = kept(data);
    *field(made, in_graph.variable_node) = kept(py.none);
    *field(made, in_graph.variable_grad) = kept(py.none);
    *field(made, in_graph.variable_requires_grad) = kept(py.true_);
    *field(made, in_graph.variable_name) = kept(py.none);
    return made;
}

// The node of a variable that `variable_of` made.
static object *node_by(object *variable, object *creator, long long rank) {
    object *made = PyType_GenericAlloc(graph.node_class, 0);
    if (!made)
        return NULL;
    object *data = slot(variable, in_graph.variable_data);
    object *structure = is_own_tensor(data) ? slot(data, at.tensor_structure) : NULL;
    *field(made, in_graph.node_creator) = kept(creator);
    *field(made, in_graph.node_rank) = PyLong_FromLongLong(rank);
    *field(made, in_graph.node_data) = kept(py.none);
    *field(made, in_graph.node_requires_grad) = kept(py.true_);
    *field(made, in_graph.node_name) = kept(py.none);
    *field(made, in_graph.node_variable) = PyWeakref_NewRef(variable, NULL);
    if (structure) {
        *field(made, in_graph.node_shape) = kept(slot(structure, in_graph.structure_shape));
        *field(made, in_graph.node_dtype) = kept(slot(structure, in_graph.structure_dtype));
    } else {
        *field(made, in_graph.node_shape) = data == py.none ? kept(data) : PyObject_GetAttr(data, graph.shape);
        *field(made, in_graph.node_dtype) = data == py.none ? kept(data) : PyObject_GetAttr(data, graph.dtype);
    }
    if (PyErr_Occurred())
        clear_field(&made);
    return made;
}

// Sets an attribute to a new reference, which it takes.
static int give(object *to, object *name, object *value) {
    int failed = !value || PyObject_SetAttr(to, name, value) < 0;
    drop(value);
    return !failed;
}

// The nodes of variables, made where they have none; the greatest rank.
static object *nodes_of(object *variables, long long *rank) {
    length count = PyList_Size(variables);
    object *all = PyTuple_New(count);
    for (length i = 0; all && i < count; i++) {
        object *variable = PyList_GetItem(variables, i), *node = slot(variable, in_graph.variable_node);
        node = node && node != py.none ? kept(node) : PyObject_GetAttr(variable, graph.node);
        if (node) {
            long long own = PyLong_AsLongLong(slot(node, in_graph.node_rank));
            *rank = i == 0 || own > *rank ? own : *rank;
            PyTuple_SetItem(all, i, node);
        }
        if (PyErr_Occurred())
            clear_field(&all);
    }
    return all;
}

// Entries `which` of a list.
static object *chosen_of(object *list, object *which) {
    length count = PyTuple_Size(which);
    object *all = PyTuple_New(count);
    for (length i = 0; all && i < count; i++) {
        object *x = PyList_GetItem(list, (length)PyLong_AsLongLong(PyTuple_GetItem(which, i)));
        if (x)
            PyTuple_SetItem(all, i, kept(x));
        else
            clear_field(&all);
    }
    return all;
}

// Keeps the arrays of inputs `which` with their nodes.
static int keep_inputs(object *variables, object *nodes, object *which) {
    for (length n = 0; n < PyTuple_Size(which); n++) {
        length i = (length)PyLong_AsLongLong(PyTuple_GetItem(which, n));
        object *variable = PyList_GetItem(variables, i), *node = PyTuple_GetItem(nodes, i);
        if (!variable || !node)
            return 0;
        object **place = field(node, in_graph.node_data), *before = *place;
        *place = kept(slot(variable, in_graph.variable_data));
        drop(before);
    }
    return 1;
}

static int are_variables(object *list) {
    for (length i = 0; i < PyList_Size(list); i++) {
        object *type = (object *)PyList_GetItem(list, i)->type;
        if (type != graph.variable_class && !PyType_IsSubtype(type, graph.variable_class))
            return 0;
    }
    return 1;
}

static object *memo_link(object *self, object *const *arguments, length given) {
    (void)self;
    if (given != 5 || !graph.variable_class || !are_variables(arguments[1]))
        return kept(py.none);
    object *function = arguments[0], *variables = arguments[1], *outputs = arguments[2];
    length count = PyList_Size(outputs);
    long long rank = 0;
    object *nodes = nodes_of(variables, &rank), *made = PyTuple_New(count), *references = PyTuple_New(count);
    int done = nodes && made && references;
    for (length i = 0; done && i < count; i++) {
        object *variable = variable_of(PyList_GetItem(outputs, i));
        object *node = variable ? node_by(variable, function, rank + 1) : NULL;
        object *reference = node ? PyWeakref_NewRef(node, NULL) : NULL;
        if (variable)
            PyTuple_SetItem(made, i, variable);
        if (reference)
            PyTuple_SetItem(references, i, reference);
        done = reference != NULL;
        if (node) {
            drop(slot(variable, in_graph.variable_node));
            *field(variable, in_graph.variable_node) = node;
        }
    }
    done = done && PyObject_SetAttr(function, graph.inputs, nodes) == 0
        && give(function, graph.rank, PyLong_FromLongLong(rank))
        && PyObject_SetAttr(function, graph.outputs, references) == 0 && keep_inputs(variables, nodes, arguments[3])
        && (!PyTuple_Size(arguments[4]) || give(function, graph.output_data, chosen_of(outputs, arguments[4])));
    drop(nodes);
    drop(references);
    if (!done)
        clear_field(&made);
    return made;
}

#endif
