package main

import (
	"context"
	"sync/atomic"
	"time"

	"k8s.io/klog/v2"

	"github.com/csi-sidecars/external-provisioner/pkg/cluster"
)

// vacRetry is the pause between two questions whether the API server has VolumeAttributesClasses.
const vacRetry = 30 * time.Second

// wantsVAC tells whether VolumeAttributesClasses are honoured. Unless the gate was set explicitly, the API
// server decides: it is asked in the background until it answers; until then they are.
func (r *components) wantsVAC() func() bool {
	gates := r.cfg.Gates
	if gates.VolumeAttributesClassSet || !gates.VolumeAttributesClass {
		return func() bool { return gates.VolumeAttributesClass }
	}
	var absent atomic.Bool
	r.background = append(r.background, forever("feature gates", func(ctx context.Context) {
		for !r.askForVAC(ctx, &absent) {
			select {
			case <-ctx.Done():
				return
			case <-time.After(vacRetry):
			}
		}
	}))
	return func() bool { return !absent.Load() }
}

// askForVAC asks once, and returns whether there was an answer.
func (r *components) askForVAC(ctx context.Context, absent *atomic.Bool) bool {
	logger := klog.FromContext(ctx)
	there, err := cluster.HasKind(ctx, r.api.clients.Core.Discovery(), "storage.k8s.io/v1", "VolumeAttributesClass")
	if err != nil {
		if ctx.Err() == nil {
			logger.Info("Cannot tell whether the API server has VolumeAttributesClasses, taking them for there and asking again", "err", err, "after", vacRetry)
		}
		return false
	}
	absent.Store(!there)
	if there {
		logger.Info("The API server has VolumeAttributesClasses")
	} else {
		logger.Info("The API server has no VolumeAttributesClasses, feature gate VolumeAttributesClass is switched off")
	}
	return true
}
