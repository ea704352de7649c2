# unishard_cuda_object(VARIABLE FILE.cu): compiles a file of this folder with nvcc and sets VARIABLE to the object. Where nvcc is missing or
# does not work with the C++ compiler, VARIABLE keeps its value, which is the source without kernels.
# nvcc is called directly: with the language CUDA enabled, CMake would link a second CUDA runtime, the static one, into every program and
# would ask the users of the installed package for a CUDA compiler.
# --fmad=false: kernels round as the host does. -arch=all-major: every device of this toolkit, and later ones by PTX.
set(UNISHARD_CUDA_ARCHITECTURES all-major CACHE STRING "Architectures of the CUDA kernels, as nvcc's option -arch takes them")
set(UNISHARD_CUDA_FLAGS -std=c++20 -O3 --fmad=false -ccbin ${CMAKE_CXX_COMPILER} -Xcompiler -fPIC)

function(unishard_cuda_object variable file)
  set(nvcc ${CUDAToolkit_NVCC_EXECUTABLE})
  if(NOT nvcc)
    return()
  endif()
  set(flags ${UNISHARD_CUDA_FLAGS} -arch=${UNISHARD_CUDA_ARCHITECTURES})
  set(key "${nvcc} ${CUDAToolkit_VERSION} ${CMAKE_CXX_COMPILER} ${CMAKE_CXX_COMPILER_VERSION} ${flags}")
  if(NOT UNISHARD_CUDA_TRIED STREQUAL key)
    set(try ${PROJECT_BINARY_DIR}/CMakeFiles/cuda_try)
    file(WRITE ${try}.cu "#include <span>\n__global__ void empty() {}\nvoid start() { empty<<<1, 1>>>(); }\n")
    execute_process(COMMAND ${nvcc} ${flags} -c ${try}.cu -o ${try}.o RESULT_VARIABLE status ERROR_VARIABLE problem OUTPUT_QUIET)
    set(UNISHARD_CUDA_STATUS ${status} CACHE INTERNAL "Exit status of a first compilation by nvcc")
    set(UNISHARD_CUDA_TRIED "${key}" CACHE INTERNAL "The compiler and options of that compilation")
    if(NOT status EQUAL 0)
      message(WARNING "no CUDA kernels: ${nvcc} with ${CMAKE_CXX_COMPILER} fails: ${problem}")
    endif()
  endif()
  if(NOT UNISHARD_CUDA_STATUS EQUAL 0)
    return()
  endif()
  set(UNISHARD_CUDA_FLAGS ${UNISHARD_CUDA_FLAGS} CACHE INTERNAL "nvcc's options without the architecture")
  get_filename_component(name ${file} NAME)
  set(object ${CMAKE_CURRENT_BINARY_DIR}/${name}.o)
  set(includes ${PROJECT_SOURCE_DIR}/format/include ${CMAKE_CURRENT_SOURCE_DIR}/include ${CMAKE_CURRENT_SOURCE_DIR}/src)
  list(TRANSFORM includes PREPEND -I)
  add_custom_command(OUTPUT ${object}
    COMMAND ${nvcc} ${flags} ${includes} -MD -MF ${object}.d -c ${CMAKE_CURRENT_SOURCE_DIR}/${file} -o ${object}
    DEPENDS ${file} DEPFILE ${object}.d COMMENT "Compiling ${name} with nvcc" VERBATIM)
  set_source_files_properties(${object} PROPERTIES EXTERNAL_OBJECT ON GENERATED ON)
  set(${variable} ${object} PARENT_SCOPE)
endfunction()
