// Package check tests what is in deploy/: that manifests are what Kubernetes takes, and need
// no more rights than they say; that systemd takes the units; and, with runc, that keeper, fd
// store, writer and readers work in containers as a pod and Compose have them, each killed and started again.
//
// It is a module of its own, because the types of Kubernetes are no dependency of gpufd's.
package check
