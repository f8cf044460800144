package main

import (
	"context"
	"io"
)

// answer tells what the sidecar would do about a claim or a PersistentVolume. It writes nothing to the cluster.
func (o *explainOptions) answer(ctx context.Context, env environment, w io.Writer) error {
	cfg, err := o.Complete(env, version)
	if err != nil {
		return err
	}
	report, err := explainNow(ctx, cfg)
	if err != nil {
		return err
	}
	return o.print(w, report)
}
