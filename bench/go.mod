module github.com/gpufd/gpufd/bench

go 1.26.0

replace github.com/gpufd/gpufd => ../

require (
	github.com/ebitengine/purego v0.11.3
	github.com/gpufd/gpufd v0.0.0
	github.com/stretchr/testify v1.12.1
	golang.org/x/sys v0.49.0
)

require go.yaml.in/yaml/v3 v3.0.5 // indirect
