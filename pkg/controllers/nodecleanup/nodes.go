package nodecleanup

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// look is one look at the nodes: what it has asked once it does not ask again. It asks the API server and no cache,
// and only for what somebody hangs on: a watch of all nodes would cost more than all of it. An error is no answer.
type look struct {
	client  kubernetes.Interface
	driver  string
	states  map[string]nodeState
	answers map[question]bool
}

func (c *Controller) look() *look {
	return &look{client: c.cfg.Client, driver: c.cfg.Driver, states: map[string]nodeState{}, answers: map[question]bool{}}
}

// at returns the states of these nodes.
func (l *look) at(ctx context.Context, nodes []string) (map[string]nodeState, error) {
	for _, node := range nodes {
		if _, known := l.states[node]; known {
			continue
		}
		state, err := l.read(ctx, node)
		if err != nil {
			return nil, err
		}
		l.states[node] = state
	}
	return l.states, nil
}

func (l *look) read(ctx context.Context, node string) (nodeState, error) {
	_, err := l.client.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return gone, nil
	case err != nil:
		return serving, fmt.Errorf("read node %q: %w", node, err)
	}
	csiNode, err := l.client.StorageV1().CSINodes().Get(ctx, node, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return driverless, nil
	case err != nil:
		return serving, fmt.Errorf("read CSINode %q: %w", node, err)
	}
	for _, entry := range csiNode.Spec.Drivers {
		if entry.Name == l.driver {
			return serving, nil
		}
	}
	return driverless, nil
}

// none reports whether the answer to all questions is that there is no such node.
func (l *look) none(ctx context.Context, questions []question) (bool, error) {
	for _, q := range questions {
		exists, known := l.answers[q]
		if !known {
			var err error
			if exists, err = l.ask(ctx, q); err != nil {
				return false, err
			}
			l.answers[q] = exists
		}
		if exists {
			return false, nil
		}
	}
	return true, nil
}

// ask reports whether any node matches. One is enough; an empty page may be followed by others.
func (l *look) ask(ctx context.Context, q question) (bool, error) {
	options := metav1.ListOptions{LabelSelector: q.labels, FieldSelector: q.fields, Limit: 1}
	for {
		page, err := l.client.CoreV1().Nodes().List(ctx, options)
		switch {
		case err != nil:
			return false, fmt.Errorf("list nodes with labels %q and fields %q: %w", q.labels, q.fields, err)
		case len(page.Items) > 0:
			return true, nil
		case page.Continue == "":
			return false, nil
		}
		options.Continue = page.Continue
	}
}
