package cluster

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/retry"
)

// Modify changes an object that others may write at the same time: it reads the object, changes it and writes it, anew
// when somebody was faster. The functions are methods of a typed client: Get, and Update or UpdateStatus.
func Modify[T any](
	ctx context.Context, name string,
	get func(context.Context, string, metav1.GetOptions) (T, error),
	update func(context.Context, T, metav1.UpdateOptions) (T, error),
	change func(T),
) error {
	return retry.RetryOnConflict(retry.DefaultRetry, func() error {
		live, err := get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		change(live)
		_, err = update(ctx, live, metav1.UpdateOptions{})
		return err
	})
}
