package operations

import (
	"context"
	"fmt"

	"golang.org/x/sync/errgroup"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"
)

// listPage is how many Leases one answer holds at most.
const listPage = 500

// find returns the Leases of the slots by their number: by LIST, or without that right one by one.
func find(ctx context.Context, client leaseReader, n names) (map[int]*coordinationv1.Lease, error) {
	found, err := list(ctx, client, n)
	if apierrors.IsForbidden(err) {
		klog.FromContext(ctx).V(2).Info("The Leases of operations cannot be listed, reading them one by one", "err", err.Error())
		if found, err := search(ctx, client, n); !apierrors.IsForbidden(err) {
			return found, err
		}
	}
	return found, err
}

// leaseReader is what a search needs of a client.
type leaseReader interface {
	Get(ctx context.Context, name string, opts metav1.GetOptions) (*coordinationv1.Lease, error)
	List(ctx context.Context, opts metav1.ListOptions) (*coordinationv1.LeaseList, error)
}

func list(ctx context.Context, client leaseReader, n names) (map[int]*coordinationv1.Lease, error) {
	found := map[int]*coordinationv1.Lease{}
	opts := metav1.ListOptions{LabelSelector: n.selector(), Limit: listPage}
	for {
		page, err := client.List(ctx, opts)
		if err != nil {
			return nil, fmt.Errorf("list Leases: %w", err)
		}
		for i := range page.Items {
			if number, ok := n.number(page.Items[i].Name); ok {
				found[number] = &page.Items[i]
			}
		}
		if opts.Continue = page.Continue; opts.Continue == "" {
			return found, nil
		}
	}
}

// search reads one number after the other until many in a row are missing: one that was deleted is no end.
func search(ctx context.Context, client leaseReader, n names) (map[int]*coordinationv1.Lease, error) {
	found := map[int]*coordinationv1.Lease{}
	for first, last := 0, -1; first <= last+missingInARow; first += maxRequests {
		leases, err := getAll(ctx, client, n, first)
		if err != nil {
			return nil, err
		}
		for i, lease := range leases {
			if lease != nil {
				found[first+i], last = lease, first+i
			}
		}
	}
	return found, nil
}

// getAll reads maxRequests Leases at once, from the number first on. A missing one is nil.
func getAll(ctx context.Context, client leaseReader, n names, first int) ([]*coordinationv1.Lease, error) {
	leases := make([]*coordinationv1.Lease, maxRequests)
	reading, ctx := errgroup.WithContext(ctx)
	for i := range leases {
		reading.Go(func() error {
			lease, err := client.Get(ctx, n.of(first+i), metav1.GetOptions{})
			switch {
			case apierrors.IsNotFound(err):
				return nil
			case err != nil:
				return fmt.Errorf("read Lease %s: %w", n.of(first+i), err)
			}
			leases[i] = lease
			return nil
		})
	}
	return leases, reading.Wait()
}
