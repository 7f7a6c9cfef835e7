// SPDX-License-Identifier: Apache-2.0
// fake_graph.c - streams captured into graphs, and graphs launched. See fake_impl.h. Invariant: a
// capture is in fake.capture from its begin to its end, and streams that joined it leave it then.
#include "tests/fakecuda/fake_impl.h"
#include <stdlib.h>
#include <string.h>

struct CUgraph_st {
	struct node *node;
	unsigned nnode;
};

cuda_rc fake_capture_begin(cuda_stream s, unsigned mode)
{
	struct CUstream_st *x;

	CALL("cuStreamBeginCapture");
	CONTEXT();
	x = stream_of(s);
	FAIL_IF(!x || x->legacy || x->capture || mode > CUDA_CAPTURE_RELAXED,
		x && x->legacy ? CUDA_CAPTURE_UNSUPPORTED : CUDA_INVALID_VALUE);
	x->capture = calloc(1, sizeof *x->capture);
	FAIL_IF(!x->capture, CUDA_OUT_OF_MEMORY);
	*x->capture = (struct capture){
		.mode = mode, .refs = 1, .by = pthread_self(), .next = fake.capture
	};
	fake.capture = x->capture;
	return call_end(CUDA_OK);
}

cuda_rc fake_capture_end(cuda_stream s, struct CUgraph_st **ret)
{
	struct CUstream_st *x;
	struct capture *c, **at;
	bool invalid;

	CALL("cuStreamEndCapture");
	CONTEXT();
	x = stream_of(s);
	*ret = NULL;
	FAIL_IF(!x || !x->capture, CUDA_INVALID_VALUE);
	c = x->capture;
	invalid = c->invalid;
	for (at = &fake.capture; *at != c; at = &(*at)->next)
		;
	*at = c->next;
	for (int i = 0; i < fake.ndevice; i++)
		for (struct CUstream_st *y = fake.ctx[i].stream; y; y = y->next)
			if (y->capture == c)
				y->capture = NULL;
	if (!invalid) {
		*ret = calloc(1, sizeof **ret);
		FAIL_IF(!*ret, CUDA_OUT_OF_MEMORY);
		**ret = (struct CUgraph_st){ c->node, c->nnode };
	} else {
		free(c->node);
	}
	free(c);
	return call_end(invalid ? CUDA_CAPTURE_INVALIDATED : CUDA_OK);
}

cuda_rc fake_graph_instantiate(struct CUgraph_st **ret, struct CUgraph_st *g,
			       unsigned long long flags)
{
	(void)flags;
	CALL("cuGraphInstantiateWithFlags");
	FAIL_IF(!g, CUDA_INVALID_VALUE);
	*ret = g; /* a graph is launched as it is; freeing the graph is freeing both */
	return call_end(CUDA_OK);
}

cuda_rc fake_graph_launch(struct CUgraph_st *g, cuda_stream s)
{
	struct CUstream_st *x;

	CALL("cuGraphLaunch");
	CONTEXT();
	x = stream_of(s);
	FAIL_IF(!x || !g, CUDA_INVALID_HANDLE);
	for (unsigned i = 0; i < g->nnode; i++) {
		struct node *n = &g->node[i];
		struct work w = n->work;

		if (n->record)
			event_mark(n->record, x);
		else if (n->wait)
			op_add(x, &(struct work){ 0 }, n->wait->mark);
		else if (w.kind == OP_KERNEL) {
			size_t bytes = 0;

			for (unsigned k = 0; k < w.kernel->n; k++)
				bytes += 8 + (w.kernel->bytes[k] + 7) / 8 * 8;
			w.param = malloc(bytes + 8);
			if (!w.param)
				abort();
			memcpy(w.param, n->work.param, bytes);
			for (unsigned k = 0; k < w.kernel->n; k++)
				w.param[k] = (uint8_t *)w.param + ((uint8_t *)n->work.param[k] -
								   (uint8_t *)n->work.param);
			op_add(x, &w, NULL);
		} else
			op_add(x, &w, NULL);
	}
	return call_end(CUDA_OK);
}

cuda_rc fake_graph_exec_free(struct CUgraph_st *g)
{
	(void)g;
	CALL("cuGraphExecDestroy");
	return call_end(CUDA_OK);
}

cuda_rc fake_graph_free(struct CUgraph_st *g)
{
	CALL("cuGraphDestroy");
	FAIL_IF(!g, CUDA_INVALID_VALUE);
	for (unsigned i = 0; i < g->nnode; i++)
		free(g->node[i].work.param);
	free(g->node);
	free(g);
	return call_end(CUDA_OK);
}
