module rowmq

go 1.21
