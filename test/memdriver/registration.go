package memdriver

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"

	"google.golang.org/grpc"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

// registrar tells kubelet of the driver, as node-driver-registrar does.
type registrar struct {
	registration.UnimplementedRegistrationServer
	d *Driver
}

func (s *registrar) GetInfo(context.Context, *registration.InfoRequest) (*registration.PluginInfo, error) {
	cfg := s.d.config()
	return &registration.PluginInfo{
		Type: registration.CSIPlugin, Name: cfg.Name, Endpoint: cfg.Socket, SupportedVersions: []string{"1.0.0"},
	}, nil
}

func (s *registrar) NotifyRegistrationStatus(_ context.Context, r *registration.RegistrationStatus) (*registration.RegistrationStatusResponse, error) {
	s.d.mu.Lock()
	defer s.d.mu.Unlock()
	s.d.registered = r.GetPluginRegistered()
	s.d.refusal = nil
	if !r.GetPluginRegistered() {
		s.d.refusal = fmt.Errorf("memdriver: kubelet does not take the driver: %s", r.GetError())
	}
	s.d.notify()
	return &registration.RegistrationStatusResponse{}, nil
}

// Registered tells whether kubelet has taken the driver in this life of it. The error is that of a kubelet which refused;
// nil before it has asked.
func (d *Driver) Registered() (bool, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.registered, d.refusal
}

// startRegistrar serves the socket that kubelet watches for; the lock is held. It returns nil without a registration folder.
func (d *Driver) startRegistrar() (*grpc.Server, error) {
	d.registered, d.refusal = false, nil
	if d.cfg.Registration == "" {
		return nil, nil //nolint:nilnil // no folder, no server
	}
	path := filepath.Join(d.cfg.Registration, d.cfg.Name+"-reg.sock")
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("memdriver: remove old registration socket: %w", err)
	}
	listener, err := net.Listen("unix", path)
	if err != nil {
		return nil, fmt.Errorf("memdriver: %w", err)
	}
	server := grpc.NewServer(grpc.WaitForHandlers(true))
	registration.RegisterRegistrationServer(server, &registrar{d: d})
	d.workers.Go(func() { _ = server.Serve(listener) })
	return server, nil
}
