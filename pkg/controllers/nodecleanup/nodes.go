package nodecleanup

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/validate/content"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// look is one look at the nodes: what it has asked once it does not ask again, not even after an error. It asks the API
// server and no cache, and only for what somebody hangs on: a watch of all nodes would cost more than all of it. An
// error is no answer.
type look struct {
	client  kubernetes.Interface
	driver  string
	states  map[string]nodeState // node → its state
	answers map[question]bool    // question → whether there is such a node
	errs    map[any]error        // node or question → why there is no answer
}

func (c *Controller) look() *look {
	return &look{
		client: c.cfg.Client, driver: c.cfg.Driver,
		states: map[string]nodeState{}, answers: map[question]bool{}, errs: map[any]error{},
	}
}

// at returns the state of the node.
func (l *look) at(ctx context.Context, node string) (nodeState, error) {
	err := remember(l.states, l.errs, node, func() (nodeState, error) { return l.read(ctx, node) })
	return l.states[node], err
}

// remember asks about key, unless there is an answer or an error.
func remember[K comparable, V any](answers map[K]V, errs map[any]error, key K, ask func() (V, error)) error {
	if _, known := answers[key]; known || errs[key] != nil {
		return errs[key]
	}
	answer, err := ask()
	if err != nil {
		errs[key] = err
		return err
	}
	answers[key] = answer
	return nil
}

func (l *look) read(ctx context.Context, node string) (nodeState, error) {
	if len(content.IsPathSegmentName(node)) > 0 {
		return gone, nil // the API server has no object of such a name, and the client cannot ask for it
	}
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
		if err := remember(l.answers, l.errs, q, func() (bool, error) { return l.ask(ctx, q) }); err != nil {
			return false, err
		}
		if l.answers[q] {
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
